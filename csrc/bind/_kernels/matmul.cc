#include "kernels/matmul.h"

#include <nanobind/stl/string.h>

#include "bind/_kernels/arrays.h"
#include "kernels/program.h"

namespace headrace::bind {
namespace {

using kernels::Bf16;
using kernels::BlockFormat;
using kernels::PackedMatrix;
using kernels::QuantisedMatrix;
using kernels::Weight;
using Blocks = Array<const std::uint8_t, 2>;
using Halves = Array<const std::uint16_t, 2>;

template <typename A>
void require_rows(const Weight& weight, const A& rows) {
  require_size(rows, 1, weight.k(), "rows");
  require(size_of(rows, 0) > 0, "rows: a weight needs at least one row");
}

void append_floats(Weight& weight, Floats<2> rows) {
  require_rows(weight, rows);
  const nb::gil_scoped_release unlocked;
  weight.append(PackedMatrix(rows.data(), size_of(rows, 0), weight.k()));
}

void append_bfloat16(Weight& weight, Halves rows) {
  require_rows(weight, rows);
  static_assert(sizeof(Bf16) == sizeof(std::uint16_t));
  const nb::gil_scoped_release unlocked;
  weight.append(PackedMatrix(reinterpret_cast<const Bf16*>(rows.data()), size_of(rows, 0), weight.k()));
}

void append_blocks(Weight& weight, const std::string& kind, Blocks rows) {
  const BlockFormat& format = kernels::block_format(kind);
  require(weight.k() % format.values == 0, "rows: " + std::to_string(weight.k()) + " columns are no whole " + kind +
                                               " blocks of " + std::to_string(format.values));
  require_size(rows, 1, weight.k() / format.values * format.bytes, "rows");
  require(size_of(rows, 0) > 0, "rows: a weight needs at least one row");
  const nb::gil_scoped_release unlocked;
  weight.append(QuantisedMatrix(format, rows.data(), size_of(rows, 0), weight.k()));
}

void submit_linear(kernels::InputRows in, std::int64_t tokens, const Weight& weight,
                   const std::optional<Floats<1>>& bias, FloatsOut<2>& out) {
  in.k = weight.k();
  require_size(out, 0, tokens, "out");
  require_size(out, 1, weight.n(), "out");
  if (bias) require_size(*bias, 0, weight.n(), "bias");
  const kernels::LinearArgs args{in, &weight, bias ? bias->data() : nullptr, out.data(), tokens};
  const nb::gil_scoped_release unlocked;
  kernels::submit(args);
}

void linear(Floats<2> x, const Weight& weight, std::optional<Floats<1>> bias, FloatsOut<2> out) {
  require_size(x, 1, weight.k(), "x");
  kernels::InputRows in;
  in.x = x.data();
  submit_linear(in, size_of(x, 0), weight, bias, out);
}

kernels::InputRows normed_rows(const Floats<2>& x, const Floats<1>& norm, float eps, const Weight& weight) {
  require_size(x, 1, weight.k(), "x");
  require_size(norm, 0, weight.k(), "norm");
  kernels::InputRows in;
  in.made = kernels::Made::kNorm, in.x = x.data(), in.k = weight.k(), in.norm = norm.data(), in.eps = eps;
  return in;
}

void norm_linear(Floats<2> x, std::optional<Floats<2>> residual, Floats<1> norm, float eps, const Weight& weight,
                 std::optional<Floats<1>> bias, std::optional<FloatsOut<2>> sum, FloatsOut<2> out) {
  kernels::InputRows in = normed_rows(x, norm, eps, weight);
  require(residual.has_value() == sum.has_value(), "sum: goes with a residual, and only with one");
  if (residual) {
    for (int axis = 0; axis < 2; ++axis) {
      require_size(*residual, axis, size_of(x, axis), "residual");
      require_size(*sum, axis, size_of(x, axis), "sum");
    }
    in.residual = residual->data(), in.sum_out = sum->data();
  }
  submit_linear(in, size_of(x, 0), weight, bias, out);
}

void gated_linear(Floats<2> x, bool gelu, const Weight& weight, FloatsOut<2> out) {
  require_size(x, 1, 2 * weight.k(), "x");
  kernels::InputRows in;
  in.made = kernels::Made::kGate, in.x = x.data();
  in.gate = gelu ? kernels::Gate::kGeluTanh : kernels::Gate::kSilu;
  submit_linear(in, size_of(x, 0), weight, std::nullopt, out);
}

void norm_argmax(Floats<2> x, Floats<1> norm, float eps, const Weight& weight, Array<std::int32_t, 1> out) {
  const kernels::InputRows in = normed_rows(x, norm, eps, weight);
  require_size(out, 0, size_of(x, 0), "out");
  const kernels::LinearArgs args{in, &weight, nullptr, nullptr, size_of(x, 0), out.data()};
  const nb::gil_scoped_release unlocked;
  kernels::submit(args);
}

void embedding(Ints<1> ids, const Weight& weight, FloatsOut<2> out) {
  require_size(out, 0, size_of(ids, 0), "out");
  require_size(out, 1, weight.k(), "out");
  const kernels::EmbeddingArgs args{&weight, ids.data(), out.data(), size_of(ids, 0)};
  const nb::gil_scoped_release unlocked;
  kernels::submit(args);
}

void bind_weight(nb::module_& m) {
  nb::class_<Weight>(m, "Weight",
                     "A weight matrix (n, k) repacked for the kernels. Made by appending rows, each lot in the "
                     "storage it has; n is their total.")
      .def(
          "__init__",
          [](Weight* self, std::int64_t k) {
            require(k > 0, "k: a weight needs at least one column");
            new (self) Weight(k);
          },
          nb::arg("k"))
      .def("append_floats", &append_floats, nb::arg("rows").noconvert(), "Rows (m, k) float32.")
      .def("append_bfloat16", &append_bfloat16, nb::arg("rows").noconvert(), "Rows (m, k), bfloat16 as uint16.")
      .def("append_blocks", &append_blocks, nb::arg("kind"), nb::arg("rows").noconvert(),
           "Rows (m, bytes per row) of blocks as GGUF stores them; kind is the format's name there.")
      .def_prop_ro("n", &Weight::n)
      .def_prop_ro("k", &Weight::k)
      .def_prop_ro("nbytes", &Weight::bytes)
      .def_prop_ro("quantised", &Weight::quantised, "Whether any rows are blocks: then linear rounds x to int8.");
}

}  // namespace

void bind_matmul(nb::module_& m) {
  bind_weight(m);
  m.def("linear", &linear, nb::arg("x").noconvert(), nb::arg("weight"), nb::arg("bias").noconvert().none(),
        nb::arg("out").noconvert(), "out (T, n) = x (T, k) @ weight.T + bias (n) or None.");
  m.def("norm_linear", &norm_linear, nb::arg("x").noconvert(), nb::arg("residual").noconvert().none(),
        nb::arg("norm").noconvert(), nb::arg("eps"), nb::arg("weight"), nb::arg("bias").noconvert().none(),
        nb::arg("sum").noconvert().none(), nb::arg("out").noconvert(),
        "linear of the norm of x, or of x + residual, which then goes to sum.");
  m.def("gated_linear", &gated_linear, nb::arg("x").noconvert(), nb::arg("gelu"), nb::arg("weight"),
        nb::arg("out").noconvert(), "linear of silu_mul or gelu_tanh_mul of x (T, 2k).");
  m.def("norm_argmax", &norm_argmax, nb::arg("x").noconvert(), nb::arg("norm").noconvert(), nb::arg("eps"),
        nb::arg("weight"), nb::arg("out").noconvert(),
        "out (T) int32 = lowest n of the maxima of linear of the norm of x; -1 without a finite maximum.");
  m.def("embedding", &embedding, nb::arg("ids").noconvert(), nb::arg("weight"), nb::arg("out").noconvert(),
        "out (T, k) = rows of the weight by id; ids (T) int32 in [0, n).");
}

}  // namespace headrace::bind
