#include "bind/_kernels/arrays.h"
#include "kernels/program.h"

namespace headrace::bind {
namespace {

using kernels::AttentionArgs;

void paged_attention(Floats<3> q, CacheArray k_cache, CacheArray v_cache, Ints<2> block_table, Ints<1> query_start_loc,
                     Ints<1> seq_lens, float scale, std::int32_t window, FloatsOut<3> out) {
  const std::int64_t slices = size_of(seq_lens, 0);
  for (int axis = 0; axis < 3; ++axis) require_size(out, axis, size_of(q, axis), "out");
  const Caches caches(k_cache, v_cache);
  require(caches.head_dim == size_of(q, 2), "k_cache: its rows are for heads of " + std::to_string(caches.head_dim));
  require_size(block_table, 0, slices, "block_table");
  require_size(query_start_loc, 0, slices + 1, "query_start_loc");
  const AttentionArgs args{q.data(),
                           caches.k,
                           caches.v,
                           block_table.data(),
                           query_start_loc.data(),
                           seq_lens.data(),
                           out.data(),
                           size_of(q, 0),
                           slices,
                           size_of(block_table, 1),
                           size_of(q, 1),
                           size_of(k_cache, 1),
                           size_of(k_cache, 2),
                           size_of(q, 2),
                           scale,
                           window,
                           size_of(k_cache, 0)};
  require(args.kv_heads > 0 && args.q_heads > 0 && args.q_heads % args.kv_heads == 0,
          "q: its heads must be a multiple of the cache's");
  require(args.block_size > 0 && args.head_dim <= 1024, "k_cache: blocks of nothing, or heads of more than 1024");
  require(window >= 0, "window must not be negative");
  const nb::gil_scoped_release unlocked;
  kernels::submit(args);
}

}  // namespace

void bind_attention(nb::module_& m) {
  m.def("paged_attention", &paged_attention, nb::arg("q").noconvert(), nb::arg("k_cache").noconvert(),
        nb::arg("v_cache").noconvert(), nb::arg("block_table").noconvert(), nb::arg("query_start_loc").noconvert(),
        nb::arg("seq_lens").noconvert(), nb::arg("scale"), nb::arg("window"), nb::arg("out").noconvert(),
        "Attention of packed rows q (T, Hq, D) to the paged cache; rows beyond the last slice become 0.");
}

}  // namespace headrace::bind
