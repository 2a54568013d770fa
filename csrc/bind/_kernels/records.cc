#include "kernels/records.h"

#include <nanobind/stl/tuple.h>

#include "bind/_kernels/arrays.h"

namespace headrace::bind {
namespace {

using kernels::ChooseArgs;
using kernels::LatentAttentionArgs;
using kernels::PagedRecords;
using kernels::RecordFormat;

using Bytes = Array<const std::uint8_t, 2>;
// Byte `offset` of a block, records in a block, bytes of a record.
using Section = std::tuple<std::int64_t, std::int64_t, std::int64_t>;

PagedRecords records_of(const Bytes& blocks, const Ints<2>& table, const Section& section, std::int64_t width,
                        const char* name) {
  const auto [offset, rows, bytes] = section;
  const std::string at(name);
  require(bytes == width,
          at + ": records of " + std::to_string(bytes) + " bytes, the format has " + std::to_string(width));
  require(offset >= 0 && rows > 0 && offset + rows * bytes <= size_of(blocks, 1), at + ": records leave their block");
  return {blocks.data(),
          size_of(blocks, 1),
          size_of(blocks, 0),
          table.data(),
          size_of(table, 0),
          size_of(table, 1),
          offset,
          rows,
          bytes};
}

void latent_attention(Floats<3> q, Ints<1> query_start_loc, Ints<1> seq_lens, Ints<1> floors, std::int64_t reach,
                      Bytes blocks, Ints<2> window_table, Section window, Ints<2> shared_table, Section shared,
                      bool narrow, std::optional<Ints<2>> chosen, Floats<1> sink, FloatsOut<3> out) {
  const std::int64_t tokens = size_of(q, 0), slices = size_of(seq_lens, 0), depth = size_of(q, 2);
  for (int axis = 0; axis < 3; ++axis) require_size(out, axis, size_of(q, axis), "out");
  require(depth > 0 && depth % 32 == 0 && depth <= 1024, "q: heads must have a multiple of 32 values, at most 1024");
  require(reach > 0, "window must be positive");
  require_size(sink, 0, size_of(q, 1), "sink");
  require_size(query_start_loc, 0, slices + 1, "query_start_loc");
  require_size(floors, 0, slices, "floors");
  require_size(window_table, 0, slices, "window table");
  const RecordFormat format = narrow ? RecordFormat::kKv4 : RecordFormat::kMxfp8;
  LatentAttentionArgs args{};
  args.q = q.data(), args.query_start = query_start_loc.data(), args.seq_lens = seq_lens.data();
  args.floors = floors.data(), args.sink = sink.data(), args.out = out.data();
  args.window = records_of(blocks, window_table, window, record_bytes(RecordFormat::kMxfp8, depth), "window");
  args.tokens = tokens, args.slices = slices, args.heads = size_of(q, 1), args.depth = depth, args.reach = reach;
  args.shared_format = format;
  if (chosen) {
    require_size(*chosen, 0, tokens, "chosen");
    require_size(shared_table, 0, slices, "shared table");
    args.shared = records_of(blocks, shared_table, shared, record_bytes(format, depth), "shared");
    args.chosen = chosen->data(), args.most = size_of(*chosen, 1);
  }
  const nb::gil_scoped_release unlocked;
  kernels::latent_attention(args);
}

void choose_entries(Floats<3> q, Floats<2> weights, Ints<1> query_start_loc, Ints<1> visible, Bytes blocks,
                    Ints<2> table, Section codes, Section scales, bool rounded, std::int64_t block_size,
                    std::optional<Ints<2>> among, IntsOut<2> entries, IntsOut<2> chosen_blocks) {
  const std::int64_t tokens = size_of(q, 0), slices = size_of(query_start_loc, 0) - 1, depth = size_of(q, 2);
  require(depth > 0 && depth % 32 == 0 && depth <= kernels::kMostIndexDepth,
          "q: index heads must have a multiple of 32 values, at most 256");
  require(size_of(q, 1) > 0 && slices >= 0, "q: there must be heads, and query_start_loc must not be empty");
  require(block_size > 0, "block_size must be positive");
  require_size(weights, 0, tokens, "weights");
  require_size(weights, 1, size_of(q, 1), "weights");
  require_size(visible, 0, tokens, "visible");
  require_size(table, 0, slices, "table");
  require_size(entries, 0, tokens, "entries");
  require_size(chosen_blocks, 0, tokens, "blocks");
  ChooseArgs args{};
  args.q = q.data(), args.weights = weights.data(), args.query_start = query_start_loc.data();
  args.visible = visible.data(), args.entries = entries.data(), args.blocks = chosen_blocks.data();
  args.codes = records_of(blocks, table, codes, depth / 2, "codes");
  args.scales = records_of(blocks, table, scales, depth / 32, "scales");
  args.tokens = tokens, args.slices = slices, args.heads = size_of(q, 1), args.depth = depth;
  args.count = size_of(entries, 1), args.num_blocks = size_of(chosen_blocks, 1), args.block_size = block_size;
  args.rounded = rounded;
  require(args.count > 0, "entries: must have room for one per row");
  if (among) {
    require_size(*among, 0, tokens, "among");
    args.among = among->data(), args.among_blocks = size_of(*among, 1);
  }
  const nb::gil_scoped_release unlocked;
  kernels::choose_entries(args);
}

}  // namespace

void bind_records(nb::module_& m) {
  m.def("latent_attention", &latent_attention, nb::arg("q").noconvert(), nb::arg("query_start_loc").noconvert(),
        nb::arg("seq_lens").noconvert(), nb::arg("floors").noconvert(), nb::arg("reach"), nb::arg("blocks").noconvert(),
        nb::arg("window_table").noconvert(), nb::arg("window"), nb::arg("shared_table").noconvert(), nb::arg("shared"),
        nb::arg("narrow"), nb::arg("chosen").noconvert().none(), nb::arg("sink").noconvert(),
        nb::arg("out").noconvert(),
        "Attention of packed rows q (T, H, D) to a window and to chosen rows of a shared cache, both records.");
  m.def("choose_entries", &choose_entries, nb::arg("q").noconvert(), nb::arg("weights").noconvert(),
        nb::arg("query_start_loc").noconvert(), nb::arg("visible").noconvert(), nb::arg("blocks").noconvert(),
        nb::arg("table").noconvert(), nb::arg("codes"), nb::arg("scales"), nb::arg("rounded"), nb::arg("block_size"),
        nb::arg("among").noconvert().none(), nb::arg("entries").noconvert(), nb::arg("chosen_blocks").noconvert(),
        "The best entries of each row by its index scores, and the best blocks of them.");
}

}  // namespace headrace::bind
