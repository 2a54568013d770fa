// Attention of a chunk of query rows to one KV head, by online softmax over tiles of 32 absolute positions.
//
// Why the bits never change: tiles and partitions are cut at absolute positions, so chunking, caching, the
// block size and the block table cannot move them; within a tile every score and every output is one chain in
// order of position; what a row may not see is skipped or set to minus infinity before the maximum, and so
// contributes exactly nothing. Each partition (512 positions) starts afresh and partitions are merged in
// order, whether one thread walks through them or many share them.
//
// Reads only positions that some row of the chunk sees: anything else may be unwritten, foreign or
// unallocated.
#pragma once

#include "kernels/attention.h"
#include "kernels/generic/math.h"
#include "kernels/generic/tile.h"

namespace headrace::kernels::HEADRACE_ISA {

inline constexpr std::int64_t kHalf = 16, kTile = 2 * kHalf;
static_assert(kPartition % kTile == 0);

// A softmax over partitions merged so far: best and total (queries), acc (queries, depth). Lies in one
// stretch of memory, which is also how a partition's result travels between threads.
struct PartState {
  float *best, *total, *acc;
  PartState(float* p, std::int64_t queries) : best(p), total(p + queries), acc(p + 2 * queries) {}
};

// Scratch of one chunk. Query i is row i / group, head i % group of the KV head's group.
struct ChunkScratch {
  float* q;       // (queries, depth)
  float* scores;  // (queries, kTile): scores, then weights
  float* keys;    // (2, depth, kHalf): the tile's keys, transposed
  float* values;  // (kTile, depth): the tile's values, when they must be copied
  float* part;    // a PartState
  float* merged;  // a PartState
};

class ChunkAttention {
 public:
  ChunkAttention(const AttentionArgs& args, const AttentionChunk& chunk, std::int64_t kv_head, float* scratch)
      : args_(args),
        chunk_(chunk),
        kv_head_(kv_head),
        group_(args.q_heads / args.kv_heads),
        queries_(chunk.rows * group_),
        depth_(padded_depth(args.head_dim)),
        scratch_(lay_out(scratch)),
        part_(part()) {}

  // Gathers the chunk's queries, padded with zeros to the depth.
  void load_queries() {
    for (std::int64_t i = 0; i < queries_; ++i) {
      copy_padded(args_.q + query_offset(i), scratch_.q + i * depth_);
    }
  }

  // Attends to one partition of the chunk's context; `part` starts empty.
  void attend(const AttentionChunk& chunk, std::int64_t partition, PartState part) {
    clear(part);
    part_ = part;
    const std::int64_t begin = partition * kPartition, end = begin + kPartition;
    const std::int64_t first = chunk.first_seen(args_.window), last = chunk.end_position();
    const std::int64_t low = (first > begin ? first : begin) / kTile * kTile, high = last < end ? last : end;
    for (std::int64_t tile = low; tile < high; tile += kTile) attend_tile(tile);
  }

  PartState part() const { return PartState(scratch_.part, queries_); }
  PartState empty_merged() const {
    const PartState merged(scratch_.merged, queries_);
    clear(merged);
    return merged;
  }

  // out = acc / total for every query of the chunk.
  void write_out(PartState merged) const {
    for (std::int64_t i = 0; i < queries_; ++i) {
      float* const to = args_.out + query_offset(i);
      const Vec total = set1(merged.total[i]);
      for (std::int64_t d = 0; d < depth_; d += 16) {
        const std::int64_t live = args_.head_dim - d;
        store_part(to + d, div(load(merged.acc + i * depth_ + d), total), live < 16 ? live : 16);
      }
    }
  }

  std::int64_t queries() const { return queries_; }

 private:
  struct Range {
    std::int64_t low, high;
  };

  ChunkScratch lay_out(float* p) const {
    const auto take = [&p](std::int64_t count) { return (p += count) - count; };
    ChunkScratch s;
    s.q = take(queries_ * depth_), s.scores = take(queries_ * kTile);
    s.keys = take(depth_ * kTile), s.values = take(depth_ * kTile);
    s.part = take(part_floats(queries_, depth_)), s.merged = take(part_floats(queries_, depth_));
    return s;
  }

  void clear(PartState state) const {
    for (std::int64_t i = 0; i < queries_; ++i) state.best[i] = -__builtin_inff(), state.total[i] = 0;
    for (std::int64_t i = 0; i < queries_ * depth_; i += 16) store(state.acc + i, zero());
  }

  std::int64_t query_offset(std::int64_t i) const {
    const std::int64_t token = chunk_.first_token + i / group_;
    return (token * args_.q_heads + kv_head_ * group_ + i % group_) * args_.head_dim;
  }

  static Vec load_some(const float* p, std::int64_t live) { return live >= 16 ? load(p) : load_part(p, live); }
  static Vec load_some(const Bf16* p, std::int64_t live) {
    if (live >= 16) return load(p);
    Bf16 padded[16] = {};
    for (std::int64_t i = 0; i < live; ++i) padded[i] = p[i];
    return load(padded);
  }

  template <typename T>
  void copy_padded(const T* from, float* to) const {
    for (std::int64_t d = 0; d < depth_; d += 16) store(to + d, load_some(from + d, args_.head_dim - d));
  }

  // Visible positions of the tile, counted from its start, for one row.
  Range visible(std::int64_t row, std::int64_t tile) const {
    const std::int64_t position = chunk_.first_position + row;
    const std::int64_t low = args_.window > 0 ? position - args_.window + 1 - tile : 0, high = position + 1 - tile;
    return {low > 0 ? low : 0, high < kTile ? high : kTile};
  }

  template <typename T>
  const T* at(KvCache cache, std::int64_t position) const {
    const std::int64_t block = args_.block_table[chunk_.slice * args_.max_blocks + position / args_.block_size];
    const std::int64_t offset = position % args_.block_size;
    return cache.at<T>(((block * args_.kv_heads + kv_head_) * args_.block_size + offset) * args_.head_dim);
  }

  void attend_tile(std::int64_t tile) {
    std::int64_t first = 0, end = chunk_.rows;  // rows that see any of the tile
    while (first < end && visible(first, tile).high <= 0) ++first;
    while (end > first && visible(end - 1, tile).low >= kTile) --end;
    if (first == end) return;
    const Range used{visible(first, tile).low, visible(end - 1, tile).high};
    args_.k_cache.halves ? load_keys<Bf16>(tile, used) : load_keys<float>(tile, used);
    const Panels values = args_.v_cache.halves ? load_values<Bf16>(tile, used) : load_values<float>(tile, used);
    const Rows q{scratch_.q + first * group_ * depth_, depth_};
    multiply_panels(q, (end - first) * group_, {scratch_.keys, depth_ * kHalf, kHalf}, args_.head_dim, 2,
                    scratch_.scores + first * group_ * kTile, kTile, false);
    for (std::int64_t i = first * group_; i < end * group_; ++i) weigh(i, visible(i / group_, tile));
    add_values(first, end, tile, values);
  }

  // Transposes the tile's keys; positions outside `used` become zeros and are masked later.
  template <typename T>
  void load_keys(std::int64_t tile, Range used) {
    for (std::int64_t half = 0; half < 2; ++half) {
      const T* from[16];
      for (std::int64_t i = 0; i < kHalf; ++i) {
        const std::int64_t p = half * kHalf + i;
        from[i] = p >= used.low && p < used.high ? at<T>(args_.k_cache, tile + p) : nullptr;
      }
      for (std::int64_t d = 0; d < depth_; d += 16) {
        const std::int64_t left = args_.head_dim - d, live = left < 16 ? left : 16;
        Vec r[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) r[i] = from[i] ? load_some(from[i] + d, live) : zero();
        transpose(r);
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) store(scratch_.keys + (half * depth_ + d + i) * kHalf, r[i]);
      }
    }
  }

  // The tile's values where they lie, when they are one padded stretch of memory, and otherwise a copy.
  template <typename T>
  Panels load_values(std::int64_t tile, Range used) {
    const bool one_block = tile / args_.block_size == (tile + kTile - 1) / args_.block_size;
    if constexpr (sizeof(T) == sizeof(float)) {
      if (one_block && depth_ == args_.head_dim) return {at<T>(args_.v_cache, tile), 16, depth_};
    }
    for (std::int64_t p = used.low; p < used.high; ++p) {
      copy_padded(at<T>(args_.v_cache, tile + p), scratch_.values + p * depth_);
    }
    return {scratch_.values, 16, depth_};
  }

  // Online softmax of one query: scores become weights, and what was summed before is scaled to the new
  // maximum.
  void weigh(std::int64_t query, Range seen) {
    float* const scores = scratch_.scores + query * kTile;
    const Vec scale = set1(args_.scale), never = set1(-__builtin_inff());
    const Vec s0 = select(lanes_from_to(clip(seen.low), clip(seen.high)), mul(load(scores), scale), never);
    const Vec s1 =
        select(lanes_from_to(clip(seen.low - kHalf), clip(seen.high - kHalf)), mul(load(scores + kHalf), scale), never);
    const float before = part_.best[query], here = max_of(max(s0, s1)), best = here > before ? here : before;
    const Vec w0 = exp(sub(s0, set1(best))), w1 = exp(sub(s1, set1(best)));
    store(scores, w0), store(scores + kHalf, w1);
    const float tile_total = sum(add(w0, w1));
    if (best == before) {
      part_.total[query] += tile_total;
      return;
    }
    const Vec shrink = exp(set1(before - best));
    float factor[16];
    store(factor, shrink);
    part_.total[query] = part_.total[query] * factor[0] + tile_total;
    part_.best[query] = best;
    float* const acc = part_.acc + query * depth_;
    for (std::int64_t d = 0; d < depth_; d += 16) store(acc + d, mul(load(acc + d), shrink));
  }

  static std::int64_t clip(std::int64_t lane) { return lane < 0 ? 0 : lane > kHalf ? kHalf : lane; }

  // acc += weights @ values: all rows that see the whole tile together, each other row over its own range.
  void add_values(std::int64_t first, std::int64_t end, std::int64_t tile, Panels values) {
    for (std::int64_t row = first; row < end;) {
      const Range seen = visible(row, tile);
      std::int64_t next = row + 1;
      if (seen.low == 0 && seen.high == kTile) {
        while (next < end && visible(next, tile).low == 0) ++next;
      }
      const std::int64_t query = row * group_;
      const Panels part{values.data + seen.low * depth_, values.panel_stride, values.k_stride};
      multiply_panels({scratch_.scores + query * kTile + seen.low, kTile}, (next - row) * group_, part,
                      seen.high - seen.low, depth_ / 16, part_.acc + query * depth_, depth_, true);
      row = next;
    }
  }

  const AttentionArgs& args_;
  const AttentionChunk& chunk_;
  const std::int64_t kv_head_, group_, queries_, depth_;
  const ChunkScratch scratch_;
  PartState part_;
};

// Both sides are scaled to the larger maximum. A partition of which the query sees nothing leaves no trace.
inline void merge_query(PartState into, PartState part, std::int64_t i, std::int64_t depth) {
  if (part.total[i] == 0) return;
  const float larger = part.best[i] > into.best[i] ? part.best[i] : into.best[i];
  const Vec mine = exp(set1(into.best[i] - larger)), theirs = exp(set1(part.best[i] - larger));
  float a[16], b[16];
  store(a, mine), store(b, theirs);
  into.total[i] = into.total[i] * a[0] + part.total[i] * b[0];
  into.best[i] = larger;
  for (std::int64_t d = i * depth; d < (i + 1) * depth; d += 16) {
    store(into.acc + d, fma(load(into.acc + d), mine, mul(load(part.acc + d), theirs)));
  }
}

inline void merge(PartState into, PartState part, std::int64_t queries, std::int64_t depth) {
  for (std::int64_t i = 0; i < queries; ++i) merge_query(into, part, i, depth);
}

// One partition of a chunk, written to `part` (see PartState).
inline void attend_part(const AttentionArgs& args, const AttentionChunk& chunk, std::int64_t kv_head,
                        std::int64_t partition, float* part, float* scratch) {
  ChunkAttention attention(args, chunk, kv_head, scratch);
  attention.load_queries();
  attention.attend(chunk, partition, PartState(part, attention.queries()));
}

// Merges `count` parts in order and writes the chunk's rows of `out`; the parts are used up.
inline void finish_parts(const AttentionArgs& args, const AttentionChunk& chunk, std::int64_t kv_head, float* parts,
                         std::int64_t count, float* scratch) {
  ChunkAttention attention(args, chunk, kv_head, scratch);
  const PartState merged = attention.empty_merged();
  const std::int64_t queries = attention.queries(), depth = padded_depth(args.head_dim);
  for (std::int64_t p = 0; p < count; ++p) {
    merge(merged, PartState(parts + p * part_floats(queries, args.head_dim), queries), queries, depth);
  }
  attention.write_out(merged);
}

// All partitions of a chunk one after the other, with the same arithmetic as the two functions above.
inline void attend_chunk(const AttentionArgs& args, const AttentionChunk& chunk, std::int64_t kv_head, float* scratch) {
  ChunkAttention attention(args, chunk, kv_head, scratch);
  attention.load_queries();
  const PartState merged = attention.empty_merged(), part = attention.part();
  for (std::int64_t p = chunk.first_partition(args.window); p < chunk.end_partition(); ++p) {
    attention.attend(chunk, p, part);
    merge(merged, part, attention.queries(), padded_depth(args.head_dim));
  }
  attention.write_out(merged);
}

}  // namespace headrace::kernels::HEADRACE_ISA
