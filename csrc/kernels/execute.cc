#include "kernels/execute.h"

#include <cstring>
#include <string>

#include "kernels/attention.h"
#include "kernels/checks.h"
#include "kernels/dispatch.h"

namespace headrace::kernels {
namespace {

// Every block id that the kernel will follow: those of the positions some row of the slice sees.
void check_slice(const AttentionArgs& args, std::int64_t slice) {
  const std::int64_t rows = args.query_start[slice + 1] - args.query_start[slice];
  const std::int64_t length = args.seq_lens[slice], first = length - rows;
  if (rows == 0) return;
  const std::string name = "slice " + std::to_string(slice);
  require(first >= 0, name + ": seq_lens is less than its number of rows");
  require(length <= args.max_blocks * args.block_size, name + ": seq_lens exceeds what block_table covers");
  const std::int64_t seen = args.window > 0 && first >= args.window ? first - args.window + 1 : 0;
  const std::int64_t low = seen / args.block_size, high = (length + args.block_size - 1) / args.block_size;
  require_range(args.block_table + slice * args.max_blocks + low, high - low, 0, args.blocks, "block_table");
}

}  // namespace

void check(const EmbeddingArgs& args) { require_range(args.ids, args.count, 0, args.weight->n(), "ids"); }

void check(const HeadsArgs& args) {
  require_range(args.positions, args.tokens, 0, args.max_positions, "positions");
  require_range(args.slots, args.tokens, -1, args.blocks * args.block_size, "slots");
}

void check(const GatherRowsArgs& args) { require_range(args.index, args.count, 0, args.tokens, "rows"); }

void check(const AttentionArgs& args) {
  require_offsets(args.query_start, args.slices, args.tokens, "query_start_loc");
  for (std::int64_t s = 0; s < args.slices; ++s) check_slice(args, s);
}

void execute(const LinearArgs& args) { linear(args); }
void execute(const EmbeddingArgs& args) { embedding(*args.weight, args.ids, args.count, args.out); }
void execute(const NormArgs& args) { table().rms_norm(args); }
void execute(const GateArgs& args) { table().gate_mul(args); }
void execute(const HeadsArgs& args) { table().qkv_to_cache(args); }
void execute(const AxpyArgs& args) { table().axpy(args); }
void execute(const AttentionArgs& args) { paged_attention(args); }

void execute(const GatherRowsArgs& args) {
  const auto bytes = static_cast<std::size_t>(args.width) * sizeof(float);
  for (std::int64_t i = 0; i < args.count; ++i) {
    std::memcpy(args.out + i * args.width, args.x + args.index[i] * args.width, bytes);
  }
}

}  // namespace headrace::kernels
