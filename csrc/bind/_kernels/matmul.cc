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

void linear(Floats<2> x, const Weight& weight, std::optional<Floats<1>> bias, FloatsOut<2> out) {
  require_size(x, 1, weight.k(), "x");
  require_size(out, 0, size_of(x, 0), "out");
  require_size(out, 1, weight.n(), "out");
  if (bias) require_size(*bias, 0, weight.n(), "bias");
  const kernels::LinearArgs args{x.data(), &weight, bias ? bias->data() : nullptr, out.data(), size_of(x, 0)};
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
  m.def("embedding", &embedding, nb::arg("ids").noconvert(), nb::arg("weight"), nb::arg("out").noconvert(),
        "out (T, k) = rows of the weight by id; ids (T) int32 in [0, n).");
}

}  // namespace headrace::bind
