#include "bind/_kernels/arrays.h"
#include "kernels/dispatch.h"

namespace headrace::bind {
namespace {

using kernels::PackedMatrix;

void linear(Floats<2> x, const PackedMatrix& weight, std::optional<Floats<1>> bias, FloatsOut<2> out) {
  require_size(x, 1, weight.k(), "x");
  require_size(out, 0, size_of(x, 0), "out");
  require_size(out, 1, weight.n(), "out");
  if (bias) require_size(*bias, 0, weight.n(), "bias");
  const kernels::LinearArgs args{x.data(), &weight, bias ? bias->data() : nullptr, out.data(), size_of(x, 0)};
  const nb::gil_scoped_release unlocked;
  kernels::table().linear(args);
}

void embedding(Ints<1> ids, const PackedMatrix& weight, FloatsOut<2> out) {
  require_size(out, 0, size_of(ids, 0), "out");
  require_size(out, 1, weight.k(), "out");
  require_range(ids.data(), size_of(ids, 0), 0, weight.n(), "ids");
  const nb::gil_scoped_release unlocked;
  kernels::embedding(weight, ids.data(), size_of(ids, 0), out.data());
}

}  // namespace

void bind_matmul(nb::module_& m) {
  nb::class_<PackedMatrix>(m, "PackedMatrix", "A weight matrix (n, k) repacked for the kernels; float32.")
      .def(
          "__init__",
          [](PackedMatrix* self, Floats<2> rows) {
            const std::int64_t n = size_of(rows, 0), k = size_of(rows, 1);
            require(n > 0 && k > 0, "rows: a weight needs at least one row and one column");
            const nb::gil_scoped_release unlocked;
            new (self) PackedMatrix(rows.data(), n, k);
          },
          nb::arg("rows").noconvert())
      .def_prop_ro("n", &PackedMatrix::n)
      .def_prop_ro("k", &PackedMatrix::k)
      .def_prop_ro("nbytes", &PackedMatrix::bytes);
  m.def("linear", &linear, nb::arg("x").noconvert(), nb::arg("weight"), nb::arg("bias").noconvert().none(),
        nb::arg("out").noconvert(), "out (T, n) = x (T, k) @ weight.T + bias (n) or None.");
  m.def("embedding", &embedding, nb::arg("ids").noconvert(), nb::arg("weight"), nb::arg("out").noconvert(),
        "out (T, k) = rows of the weight by id; ids (T) int32 in [0, n).");
}

}  // namespace headrace::bind
