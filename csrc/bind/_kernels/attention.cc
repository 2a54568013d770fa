#include "kernels/attention.h"

#include "bind/_kernels/arrays.h"

namespace headrace::bind {
namespace {

using kernels::AttentionArgs;

// Every block id that the kernel will follow: those of the positions some row of the slice sees.
void check_slice(const AttentionArgs& args, std::int64_t slice, std::int64_t blocks) {
  const std::int64_t rows = args.query_start[slice + 1] - args.query_start[slice];
  const std::int64_t length = args.seq_lens[slice], first = length - rows;
  if (rows == 0) return;
  const std::string name = "slice " + std::to_string(slice);
  require(first >= 0, name + ": seq_lens is less than its number of rows");
  require(length <= args.max_blocks * args.block_size, name + ": seq_lens exceeds what block_table covers");
  const std::int64_t seen = args.window > 0 && first >= args.window ? first - args.window + 1 : 0;
  const std::int64_t low = seen / args.block_size, high = (length + args.block_size - 1) / args.block_size;
  const std::int32_t* const table = args.block_table + slice * args.max_blocks;
  require_range(table + low, high - low, 0, blocks, "block_table");
}

void paged_attention(Floats<3> q, Floats<4> k_cache, Floats<4> v_cache, Ints<2> block_table,
                     Ints<1> query_start_loc, Ints<1> seq_lens, float scale, std::int32_t window,
                     FloatsOut<3> out) {
  const std::int64_t slices = size_of(seq_lens, 0);
  for (int axis = 0; axis < 3; ++axis) require_size(out, axis, size_of(q, axis), "out");
  for (int axis = 0; axis < 4; ++axis) require_size(v_cache, axis, size_of(k_cache, axis), "v_cache");
  require_size(k_cache, 3, size_of(q, 2), "k_cache");
  require_size(block_table, 0, slices, "block_table");
  require_offsets(query_start_loc, slices, size_of(q, 0), "query_start_loc");
  const AttentionArgs args{q.data(),
                           k_cache.data(),
                           v_cache.data(),
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
                           window};
  require(args.kv_heads > 0 && args.q_heads > 0 && args.q_heads % args.kv_heads == 0,
          "q: its heads must be a multiple of the cache's");
  require(args.block_size > 0 && args.head_dim > 0, "k_cache: block size and head size must not be 0");
  require(window >= 0, "window must not be negative");
  for (std::int64_t s = 0; s < slices; ++s) check_slice(args, s, size_of(k_cache, 0));
  const nb::gil_scoped_release unlocked;
  kernels::paged_attention(args);
}

}  // namespace

void bind_attention(nb::module_& m) {
  m.def("paged_attention", &paged_attention, nb::arg("q").noconvert(), nb::arg("k_cache").noconvert(),
        nb::arg("v_cache").noconvert(), nb::arg("block_table").noconvert(),
        nb::arg("query_start_loc").noconvert(), nb::arg("seq_lens").noconvert(), nb::arg("scale"),
        nb::arg("window"), nb::arg("out").noconvert(),
        "Attention of packed rows q (T, Hq, D) to the paged cache; rows beyond the last slice become 0.");
}

}  // namespace headrace::bind
