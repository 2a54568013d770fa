#include "bind/_kernels/arrays.h"
#include "kernels/cache.h"
#include "kernels/dispatch.h"
#include "kernels/program.h"

namespace headrace::bind {
namespace {

void require_same(const Floats<2>& x, const Floats<2>& other, const char* name) {
  require_size(other, 0, size_of(x, 0), name);
  require_size(other, 1, size_of(x, 1), name);
}

void rms_norm(Floats<2> x, Floats<1> weight, float eps, FloatsOut<2> out) {
  require_size(weight, 0, size_of(x, 1), "weight");
  require_same(x, Floats<2>(out), "out");
  const kernels::NormArgs args{x.data(), nullptr,       weight.data(), out.data(),
                               nullptr,  size_of(x, 0), size_of(x, 1), eps};
  const nb::gil_scoped_release unlocked;
  kernels::submit(args);
}

void add_rms_norm(Floats<2> x, Floats<2> residual, Floats<1> weight, float eps, FloatsOut<2> out, FloatsOut<2> sum) {
  require_size(weight, 0, size_of(x, 1), "weight");
  require_same(x, residual, "residual");
  require_same(x, Floats<2>(out), "out");
  require_same(x, Floats<2>(sum), "sum");
  const kernels::NormArgs args{x.data(),   residual.data(), weight.data(), out.data(),
                               sum.data(), size_of(x, 0),   size_of(x, 1), eps};
  const nb::gil_scoped_release unlocked;
  kernels::submit(args);
}

// For kernels that a program cannot replay: running one while recording would leave it out of every replay.
void require_no_recording(const char* name) {
  require(!kernels::Program::recording(), std::string(name) + " cannot be captured; use qkv_to_cache");
}

void rope(Floats<3> x, Ints<1> positions, Floats<3> table, bool interleaved, FloatsOut<3> out) {
  require_no_recording("rope");
  const std::int64_t tokens = size_of(x, 0), rot = 2 * size_of(table, 2);
  for (int axis = 0; axis < 3; ++axis) require_size(out, axis, size_of(x, axis), "out");
  require_size(positions, 0, tokens, "positions");
  require_size(table, 1, 2, "table");
  require(rot <= size_of(x, 2), "table: rotates more dimensions than x has");
  require_range(positions.data(), tokens, 0, size_of(table, 0), "positions");
  const kernels::RopeArgs args{x.data(),      positions.data(), table.data(), out.data(), tokens,
                               size_of(x, 1), size_of(x, 2),    rot,          interleaved};
  const nb::gil_scoped_release unlocked;
  kernels::table().rope(args);
}

void gate_mul(kernels::Gate gate, Floats<2> x, FloatsOut<2> out) {
  require_size(out, 0, size_of(x, 0), "out");
  require_size(x, 1, 2 * size_of(out, 1), "x");
  const kernels::GateArgs args{gate, x.data(), out.data(), size_of(x, 0), size_of(out, 1)};
  const nb::gil_scoped_release unlocked;
  kernels::submit(args);
}

void write_kv(Floats<3> k, Floats<3> v, CacheArray k_cache, CacheArray v_cache, Ints<1> slots) {
  require_no_recording("write_kv");
  const std::int64_t tokens = size_of(slots, 0), heads = size_of(k_cache, 1);
  const Caches caches(k_cache, v_cache);
  const std::int64_t depth = caches.head_dim;
  require_size(k, 0, tokens, "k"), require_size(k, 1, heads, "k"), require_size(k, 2, depth, "k");
  require_size(v, 0, tokens, "v"), require_size(v, 1, heads, "v"), require_size(v, 2, depth, "v");
  const std::int64_t block_size = size_of(k_cache, 2);
  require_range(slots.data(), tokens, -1, size_of(k_cache, 0) * block_size, "slots");
  const kernels::WriteKvArgs args{k.data(), v.data(), caches.k,   caches.v, slots.data(),
                                  tokens,   heads,    block_size, depth};
  const nb::gil_scoped_release unlocked;
  kernels::write_kv(args);
}

void qkv_to_cache(Floats<2> qkv, std::optional<Floats<1>> q_norm, std::optional<Floats<1>> k_norm, float eps,
                  Ints<1> positions, Floats<3> table, bool interleaved, CacheArray k_cache, CacheArray v_cache,
                  Ints<1> slots, FloatsOut<3> out) {
  const std::int64_t tokens = size_of(qkv, 0), kv_heads = size_of(k_cache, 1);
  const std::int64_t heads = size_of(out, 1), rot = 2 * size_of(table, 2);
  const Caches caches(k_cache, v_cache);
  const std::int64_t d = caches.head_dim;
  require_size(out, 0, tokens, "out"), require_size(out, 2, d, "out");
  require_size(qkv, 1, (heads + 2 * kv_heads) * d, "qkv");
  require_size(positions, 0, tokens, "positions"), require_size(slots, 0, tokens, "slots");
  require_size(table, 1, 2, "table");
  require(rot <= d && d <= 1024, "table: rotates more than a head has, or heads of more than 1024");
  if (q_norm) require_size(*q_norm, 0, d, "q_norm");
  if (k_norm) require_size(*k_norm, 0, d, "k_norm");
  const kernels::HeadsArgs args{qkv.data(),
                                q_norm ? q_norm->data() : nullptr,
                                k_norm ? k_norm->data() : nullptr,
                                positions.data(),
                                table.data(),
                                slots.data(),
                                caches.k,
                                caches.v,
                                out.data(),
                                tokens,
                                heads,
                                kv_heads,
                                d,
                                rot,
                                size_of(k_cache, 0),
                                size_of(k_cache, 2),
                                size_of(table, 0),
                                eps,
                                interleaved};
  const nb::gil_scoped_release unlocked;
  kernels::submit(args);
}

void gather_rows(Floats<2> x, Ints<1> rows, FloatsOut<2> out) {
  require_size(out, 0, size_of(rows, 0), "out"), require_size(out, 1, size_of(x, 1), "out");
  const kernels::GatherRowsArgs args{x.data(), rows.data(), out.data(), size_of(rows, 0), size_of(x, 1), size_of(x, 0)};
  const nb::gil_scoped_release unlocked;
  kernels::submit(args);
}

void axpy(Floats<2> x, float factor, std::optional<Floats<2>> other, FloatsOut<2> out) {
  require_same(x, Floats<2>(out), "out");
  if (other) require_same(x, *other, "other");
  const kernels::AxpyArgs args{x.data(), other ? other->data() : nullptr, out.data(), size_of(x, 0), size_of(x, 1),
                               factor};
  const nb::gil_scoped_release unlocked;
  kernels::submit(args);
}

}  // namespace

void bind_rows(nb::module_& m) {
  m.def("rms_norm", &rms_norm, nb::arg("x").noconvert(), nb::arg("weight").noconvert(), nb::arg("eps"),
        nb::arg("out").noconvert(), "out = x / sqrt(mean(x^2) + eps) * weight, row by row.");
  m.def("add_rms_norm", &add_rms_norm, nb::arg("x").noconvert(), nb::arg("residual").noconvert(),
        nb::arg("weight").noconvert(), nb::arg("eps"), nb::arg("out").noconvert(), nb::arg("sum").noconvert(),
        "sum = x + residual; out = its norm.");
  m.def("rope", &rope, nb::arg("x").noconvert(), nb::arg("positions").noconvert(), nb::arg("table").noconvert(),
        nb::arg("interleaved"), nb::arg("out").noconvert(), "out (T, heads, D) = x rotated by its positions.");
  m.def(
      "silu_mul", [](Floats<2> x, FloatsOut<2> out) { gate_mul(kernels::Gate::kSilu, x, out); },
      nb::arg("x").noconvert(), nb::arg("out").noconvert(), "out (T, F) = silu(x[:, :F]) * x[:, F:].");
  m.def(
      "gelu_tanh_mul", [](Floats<2> x, FloatsOut<2> out) { gate_mul(kernels::Gate::kGeluTanh, x, out); },
      nb::arg("x").noconvert(), nb::arg("out").noconvert(), "out (T, F) = gelu_tanh(x[:, :F]) * x[:, F:].");
  m.def("write_kv", &write_kv, nb::arg("k").noconvert(), nb::arg("v").noconvert(), nb::arg("k_cache").noconvert(),
        nb::arg("v_cache").noconvert(), nb::arg("slots").noconvert(),
        "Copies token t's keys and values to slots[t] of the caches; -1 writes nothing.");
  m.def("qkv_to_cache", &qkv_to_cache, nb::arg("qkv").noconvert(), nb::arg("q_norm").noconvert().none(),
        nb::arg("k_norm").noconvert().none(), nb::arg("eps"), nb::arg("positions").noconvert(),
        nb::arg("table").noconvert(), nb::arg("interleaved"), nb::arg("k_cache").noconvert(),
        nb::arg("v_cache").noconvert(), nb::arg("slots").noconvert(), nb::arg("out").noconvert(),
        "Head norms, rotation and cache writes of a fused projection; q goes to out (T, Hq, D).");
  m.def("gather_rows", &gather_rows, nb::arg("x").noconvert(), nb::arg("rows").noconvert(), nb::arg("out").noconvert(),
        "out (R, width) = x[rows].");
  m.def("axpy", &axpy, nb::arg("x").noconvert(), nb::arg("factor"), nb::arg("other").noconvert().none(),
        nb::arg("out").noconvert(), "out = x * factor, plus other where given.");
}

}  // namespace headrace::bind
