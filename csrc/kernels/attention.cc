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
constexpr std::int64_t kMostToJoin = 48;  // a chunk of more queries gains little by sharing tiles with another

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

std::int64_t queries_of(const AttentionArgs& args, const AttentionChunk& chunk) {
  return chunk.rows * (args.q_heads / args.kv_heads);
}

// Rows that share their first partitions, block for block, as requests behind one system prompt do: chunks [first,
// end), which lie one behind the other in the step. Those partitions are attended to by all rows at once, so that each
// tile of keys is read once and not once for each row.
struct Sharing {
  std::size_t first, end;
  std::int64_t partitions;
};

// Leading partitions that two small chunks of different slices see whole, in the same blocks.
std::int64_t shared_partitions(const AttentionArgs& args, const AttentionChunk& one, const AttentionChunk& other) {
  if (one.slice == other.slice || std::max(queries_of(args, one), queries_of(args, other)) > kMostToJoin) return 0;
  const std::int64_t seen = std::min(one.first_position, other.first_position) / kPartition * kPartition;
  const std::int64_t most = (seen + args.block_size - 1) / args.block_size;
  const std::int32_t* const a = args.block_table + one.slice * args.max_blocks;
  const std::int32_t* const b = args.block_table + other.slice * args.max_blocks;
  const std::int64_t same = std::mismatch(a, a + most, b).first - a;
  return std::min(seen, same * args.block_size) / kPartition;
}

std::vector<Sharing> find_sharing(const AttentionArgs& args, const std::vector<AttentionChunk>& chunks) {
  std::vector<Sharing> found;
  if (args.window > 0) return found;
  for (std::size_t first = 0; first + 1 < chunks.size();) {
    std::size_t end = first + 1;
    const std::int64_t partitions = shared_partitions(args, chunks[first], chunks[end]);
    std::int64_t rows = chunks[first].rows;
    while (partitions > 0 && end < chunks.size() && chunks[end].slice != chunks[end - 1].slice &&
           queries_of(args, {0, 0, 0, rows + chunks[end].rows}) <= kMostQueries &&
           shared_partitions(args, chunks[first], chunks[end]) >= partitions) {
      rows += chunks[end++].rows;
    }
    if (end > first + 1) found.push_back({first, end, partitions});
    first = end;
  }
  return found;
}

// The work of one call: items that threads share out, and what is to be merged from several of them.
class Step {
 public:
  explicit Step(const AttentionArgs& args)
      : args_(args), chunks_(cut_into_chunks(args)), sharing_(find_sharing(args, chunks_)) {
    joint_.reserve(sharing_.size());
    // Few chunks over a long context (decoding): share out their partitions, or most threads would idle.
    const auto items = static_cast<std::int64_t>(chunks_.size()) * args.kv_heads;
    const bool by_partition = items < 4 * num_threads() && longest() > 1;
    std::size_t end = chunks_.size();  // last chunks first: those of a prompt see most, a short one ends it
    for (auto group = sharing_.rbegin(); group != sharing_.rend(); end = group++->first) {
      add_alone(group->end, end, by_partition);
      add_joint(*group);
    }
    add_alone(0, end, by_partition);
  }

  void run() const {
    float* const results = memory<Use::kResults>(floats_);
    const auto count = static_cast<std::int64_t>(items_.size()), turn = std::int64_t{num_threads()};
    const auto attend = [&](std::int64_t i) {
      const Item& item = items_[static_cast<std::size_t>(i)];
      const KeyRange next = i + turn < count ? items_[static_cast<std::size_t>(i + turn)].keys : KeyRange{};
      float* const scratch = scratch_for(*item.keys.chunk);
      if (item.to < 0) return table().attend_chunk(args_, item.keys, next, scratch);
      table().attend_part(args_, item.keys, next, results + item.to, scratch);
    };
    parallel_for(count, attend, Deal::kInTurn);
    parallel_for(static_cast<std::int64_t>(merges_.size()), [&](std::int64_t i) {
      const Merge& merge = merges_[static_cast<std::size_t>(i)];
      const AttentionChunk& chunk = *merge.keys.chunk;
      if (merge.joint) take_from_joint(merge, results);
      table().finish_parts(args_, chunk, merge.keys.kv_head, results + merge.at, partitions(chunk), scratch_for(chunk));
    });
  }

 private:
  enum class Use { kScratch, kResults };
  struct Item {
    KeyRange keys;
    std::int64_t to;  // where in the results its part goes; -1: a whole chunk, which writes its rows itself
  };
  // The partitions of a chunk, side by side from `at`. The first `shared` of them are computed for many rows at once,
  // of which those before the chunk's hold `lane` lanes; their parts lie side by side from `joint_at`.
  struct Merge {
    KeyRange keys;
    std::int64_t at;
    const AttentionChunk* joint = nullptr;
    std::int64_t joint_at = 0, shared = 0, lane = 0;
  };

  // The calling thread's own memory, grown as needed and kept: contents are undefined.
  template <Use use>
  static float* memory(std::int64_t floats) {
    thread_local AlignedArray<float> memory;
    thread_local std::int64_t size = 0;
    if (size < floats) {
      memory = aligned_array<float>(static_cast<std::size_t>(floats));  // may throw: the size is true only then
      size = floats;
    }
    return memory.get();
  }

  std::int64_t queries(const AttentionChunk& chunk) const { return queries_of(args_, chunk); }
  std::int64_t part_size(const AttentionChunk& chunk) const { return part_floats(queries(chunk), args_.head_dim); }
  std::int64_t partitions(const AttentionChunk& chunk) const {
    return chunk.end_partition() - chunk.first_partition(args_.window);
  }
  float* scratch_for(const AttentionChunk& chunk) const {
    return memory<Use::kScratch>(scratch_floats(queries(chunk), args_.head_dim));
  }
  std::int64_t longest() const {
    std::int64_t most = 0;
    for (const AttentionChunk& chunk : chunks_) most = std::max(most, partitions(chunk));
    return most;
  }

  // Chunks [first, end), last ones first.
  void add_alone(std::size_t first, std::size_t end, bool by_partition) {
    for (std::size_t i = end; i > first; --i) {
      const AttentionChunk& chunk = chunks_[i - 1];
      for (std::int64_t head = 0; head < args_.kv_heads; ++head) {
        const KeyRange whole = KeyRange::of_chunk(chunk, head, args_.window);
        if (by_partition) {
          add_parts(whole, 0);
        } else {
          items_.push_back({whole, -1});
        }
      }
    }
  }

  // The parts of a chunk from its partition `first` on; returns what merges all of them.
  Merge& add_parts(const KeyRange& whole, std::int64_t first) {
    const AttentionChunk& chunk = *whole.chunk;
    const std::int64_t base = chunk.first_partition(args_.window);
    for (std::int64_t p = std::max(base, first); p < chunk.end_partition(); ++p) {
      const std::int64_t to = floats_ + (p - base) * part_size(chunk);
      items_.push_back({KeyRange::of_part(chunk, whole.kv_head, p, args_.window), to});
    }
    merges_.push_back({whole, floats_});
    floats_ += partitions(chunk) * part_size(chunk);
    return merges_.back();
  }

  void add_joint(const Sharing& group) {
    AttentionChunk all = chunks_[group.first];
    all.first_position = group.partitions * kPartition;  // every row sees all of what is shared
    all.rows = 0;
    for (std::size_t i = group.first; i < group.end; ++i) all.rows += chunks_[i].rows;
    joint_.push_back(all);
    const AttentionChunk& joint = joint_.back();
    for (std::int64_t head = 0; head < args_.kv_heads; ++head) {
      const std::int64_t joint_at = floats_;
      for (std::int64_t p = 0; p < group.partitions; ++p, floats_ += part_size(joint)) {
        items_.push_back({KeyRange::of_part(joint, head, p, 0), floats_});
      }
      std::int64_t lane = 0;
      for (std::size_t i = group.first; i < group.end; lane += queries(chunks_[i++])) {
        Merge& merge = add_parts(KeyRange::of_chunk(chunks_[i], head, 0), group.partitions);
        merge.joint = &joint, merge.joint_at = joint_at, merge.shared = group.partitions, merge.lane = lane;
      }
    }
  }

  // Copies what many rows computed at once to the lanes of one chunk (see PartState for the places).
  void take_from_joint(const Merge& merge, float* results) const {
    const std::int64_t own = queries(*merge.keys.chunk), depth = padded_depth(args_.head_dim);
    const std::int64_t lanes = query_lanes(own), joint_lanes = query_lanes(queries(*merge.joint));
    for (std::int64_t p = 0; p < merge.shared; ++p) {
      const float* const from = results + merge.joint_at + p * part_size(*merge.joint);
      float* const to = results + merge.at + p * part_size(*merge.keys.chunk);
      for (std::int64_t lane = 0; lane < own; ++lane) {
        const std::int64_t source = merge.lane + lane;
        to[lane] = from[source], to[lanes + lane] = from[joint_lanes + source];
        const float* const acc = from + 2 * joint_lanes + source / 16 * depth * 16 + source % 16;
        float* const put = to + 2 * lanes + lane / 16 * depth * 16 + lane % 16;
        for (std::int64_t d = 0; d < depth * 16; d += 16) put[d] = acc[d];
      }
    }
  }

  const AttentionArgs& args_;
  const std::vector<AttentionChunk> chunks_;
  const std::vector<Sharing> sharing_;
  std::vector<AttentionChunk> joint_;
  std::vector<Item> items_;
  std::vector<Merge> merges_;
  std::int64_t floats_ = 0;  // of all results
};

}  // namespace

void paged_attention(const AttentionArgs& args) {
  Step(args).run();
  const std::int64_t row = args.q_heads * args.head_dim, end = args.query_start[args.slices];
  std::fill(args.out + end * row, args.out + args.tokens * row, 0.0f);
}

}  // namespace headrace::kernels
