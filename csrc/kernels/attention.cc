#include "kernels/attention.h"

#include <algorithm>
#include <vector>

#include "kernels/dispatch.h"
#include "kernels/threads.h"

namespace headrace::kernels {
namespace {

// Query rows times heads that share each tile of keys: the more, the less often a tile is loaded; the fewer, the more
// chunks there are for threads to share.
constexpr std::int64_t kFewestQueries = 96, kMostQueries = 192;

std::vector<AttentionChunk> cut_into_chunks(const AttentionArgs& args) {
  const std::int64_t all = args.query_start[args.slices] * args.q_heads, share = all / (8 * num_threads());
  const std::int64_t queries = std::clamp(share, kFewestQueries, kMostQueries);
  const std::int64_t rows = std::max<std::int64_t>(1, queries / (args.q_heads / args.kv_heads));
  std::vector<AttentionChunk> chunks;
  for (std::int64_t s = 0; s < args.slices; ++s) {
    const std::int64_t begin = args.query_start[s], end = args.query_start[s + 1];
    const std::int64_t before = args.seq_lens[s] - (end - begin);
    for (std::int64_t t = begin; t < end; t += rows) {
      chunks.push_back({s, t, before + (t - begin), std::min(rows, end - t)});
    }
  }
  return chunks;
}

// The calling thread's own memory, grown as needed and kept: contents are undefined.
float* thread_scratch(std::int64_t floats) {
  thread_local AlignedArray<float> memory;
  thread_local std::int64_t size = 0;
  if (size < floats) memory = aligned_array<float>(static_cast<std::size_t>(size = floats));
  return memory.get();
}

class Step {
 public:
  explicit Step(const AttentionArgs& args) : args_(args), chunks_(cut_into_chunks(args)) {}

  void run() const {
    const auto items = static_cast<std::int64_t>(chunks_.size()) * args_.kv_heads;
    // Few chunks over a long context (decoding): share out their partitions, or most threads would idle.
    if (items < 4 * num_threads() && longest() > 1) return run_by_partition();
    const std::int64_t turn = num_threads();  // threads take items in turn
    parallel_for(items, [&](std::int64_t item) {
      const KeyRange keys = range_of(item), next = item + turn < items ? range_of(item + turn) : KeyRange{};
      table().attend_chunk(args_, keys, next, scratch_for(*keys.chunk));
    });
  }

 private:
  // Last chunks first: those of a prompt see most, and a short one at the end leaves no thread waiting long.
  KeyRange range_of(std::int64_t item) const {
    const AttentionChunk& chunk = chunks_[chunks_.size() - 1 - static_cast<std::size_t>(item / args_.kv_heads)];
    return KeyRange::of_chunk(chunk, item % args_.kv_heads, args_.window);
  }
  std::int64_t queries(const AttentionChunk& chunk) const { return chunk.rows * (args_.q_heads / args_.kv_heads); }
  std::int64_t partitions(const AttentionChunk& chunk) const {
    return chunk.end_partition() - chunk.first_partition(args_.window);
  }
  float* scratch_for(const AttentionChunk& chunk) const {
    return thread_scratch(scratch_floats(queries(chunk), args_.head_dim));
  }
  std::int64_t longest() const {
    std::int64_t most = 0;
    for (const AttentionChunk& chunk : chunks_) most = std::max(most, partitions(chunk));
    return most;
  }

  struct Part {
    KeyRange keys;
    std::int64_t at;  // where in the shared memory its result goes
  };

  void run_by_partition() const {
    std::vector<Part> parts, firsts;
    std::int64_t floats = 0;
    for (const AttentionChunk& chunk : chunks_) {
      const std::int64_t first = chunk.first_partition(args_.window);
      for (std::int64_t head = 0; head < args_.kv_heads; ++head) {
        firsts.push_back({KeyRange::of_chunk(chunk, head, args_.window), floats});
        for (std::int64_t p = first; p < chunk.end_partition(); ++p) {
          parts.push_back({KeyRange::of_part(chunk, head, p, args_.window), floats});
          floats += part_floats(queries(chunk), args_.head_dim);
        }
      }
    }
    const AlignedArray<float> memory = aligned_array<float>(static_cast<std::size_t>(floats));
    const auto turn = static_cast<std::size_t>(num_threads());
    parallel_for(static_cast<std::int64_t>(parts.size()), [&](std::int64_t item) {
      const auto i = static_cast<std::size_t>(item);
      const KeyRange& keys = parts[i].keys;
      const KeyRange next = i + turn < parts.size() ? parts[i + turn].keys : KeyRange{};
      table().attend_part(args_, keys, next, memory.get() + parts[i].at, scratch_for(*keys.chunk));
    });
    parallel_for(static_cast<std::int64_t>(firsts.size()), [&](std::int64_t item) {
      const Part& whole = firsts[static_cast<std::size_t>(item)];
      const AttentionChunk& chunk = *whole.keys.chunk;
      float* const results = memory.get() + whole.at;
      table().finish_parts(args_, chunk, whole.keys.kv_head, results, partitions(chunk), scratch_for(chunk));
    });
  }

  const AttentionArgs& args_;
  const std::vector<AttentionChunk> chunks_;
};

}  // namespace

void paged_attention(const AttentionArgs& args) {
  Step(args).run();
  const std::int64_t row = args.q_heads * args.head_dim, end = args.query_start[args.slices];
  std::fill(args.out + end * row, args.out + args.tokens * row, 0.0f);
}

}  // namespace headrace::kernels
