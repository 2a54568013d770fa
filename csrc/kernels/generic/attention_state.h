// What one chunk of queries against one KV head holds: its shape, its scratch memory, and the running softmax.
#pragma once

#include "kernels/generic/lanes.h"
#include "kernels/generic/tile.h"

namespace headrace::kernels::HEADRACE_ISA {

// Visible positions of a tile, counted from its start.
struct Range {
  std::int64_t low, high;
};

// Query i is row i / group, head i % group of the KV head's group; it has lane i % 16 of vector i / 16.
struct ChunkShape {
  std::int64_t rows, kv_head, group, queries, vectors, head_dim, depth, first_position, window;

  ChunkShape(const AttentionArgs& args, const AttentionChunk& chunk, std::int64_t head)
      : rows(chunk.rows),
        kv_head(head),
        group(args.q_heads / args.kv_heads),
        queries(rows * group),
        vectors(query_lanes(queries) / 16),
        head_dim(args.head_dim),
        depth(padded_depth(args.head_dim)),
        first_position(chunk.first_position),
        window(args.window) {}

  Range visible(std::int64_t row, std::int64_t tile) const {
    const std::int64_t position = first_position + row;
    const std::int64_t low = window > 0 ? position - window + 1 - tile : 0, high = position + 1 - tile;
    return {low > 0 ? low : 0, high < kTile ? high : kTile};
  }
  // Rows that see a position of the range [first, last].
  Range seeing(std::int64_t first, std::int64_t last) const {
    const std::int64_t low = first - first_position, high = window > 0 ? last + window - first_position : rows;
    return {low > 0 ? low : 0, high < rows ? high : rows};
  }
  // Lanes of vector v that hold those rows' queries.
  Mask lanes(Range seen, std::int64_t v) const {
    return lanes_from_to(clip(seen.low * group - v * 16), clip(seen.high * group - v * 16));
  }

 private:
  static std::int64_t clip(std::int64_t lane) { return lane < 0 ? 0 : lane > 16 ? 16 : lane; }
};

// A softmax over partitions merged so far: best and total (vectors, 16), acc (vectors, depth, 16). Lies in one
// stretch of memory, which is also how a partition's result travels between threads.
struct PartState {
  float *best, *total, *acc;

  PartState(float* p, std::int64_t vectors) : best(p), total(p + vectors * 16), acc(p + 2 * vectors * 16) {}

  void clear(std::int64_t vectors, std::int64_t depth) const {
    const Vec never = set1(-__builtin_inff());
    for (std::int64_t v = 0; v < vectors; ++v) store(best + v * 16, never), store(total + v * 16, zero());
    for (std::int64_t i = 0; i < vectors * depth; ++i) store(acc + i * 16, zero());
  }
};

// Pieces of the scratch memory of one chunk, of scratch_floats() in all.
struct ChunkScratch {
  float* q;            // (vectors, steps, 16) cells
  float* q_scale;      // (vectors, 16): what a product of the query is multiplied by
  float* rows;         // (16, depth): queries on their way in
  float* keys;         // (kTile, depth)
  float* values;       // (kTile, depth)
  float* key_scale;    // (kTile)
  float* value_scale;  // (kTile)
  float* scores;       // (kTile, kMostLaneVectors, 16)
  float* weights;      // (kTile / 2, kMostLaneVectors, 16) cells
  float* few_q;        // (kFewQueries, steps) cells, and the rest for a handful of queries likewise:
  float* few_keys;     // (2, steps, 16) cells
  float* few_acc;      // (kFewQueries, depth)
  float* part;         // a PartState
  float* merged;       // a PartState

  ChunkScratch(const ChunkShape& s, float* p) {
    const auto take = [&p](std::int64_t count) { return (p += count) - count; };
    q = take(s.vectors * s.depth * 16), q_scale = take(s.vectors * 16), rows = take(16 * s.depth);
    keys = take(kTile * s.depth), values = take(kTile * s.depth);
    key_scale = take(kTile), value_scale = take(kTile);
    scores = take(kTile * kMostLaneVectors * 16), weights = take(kTile / 2 * kMostLaneVectors * 16);
    few_q = take(kFewQueries * s.depth), few_keys = take(kTile * s.depth), few_acc = take(kFewQueries * s.depth);
    part = take(part_floats(s.queries, s.head_dim)), merged = take(part_floats(s.queries, s.head_dim));
  }
};
static_assert(kLaneVectors <= kMostLaneVectors);

// What sums over positions before and in a tile are to be multiplied by.
struct Rescale {
  Vec shrink, share;
};

// Takes a tile's maximum and sum into the running softmax of vector v, in the lanes that saw something.
inline Rescale fold(PartState part, std::int64_t v, Vec here, Vec total, Mask seen) {
  const Vec before = load(part.best + v * 16), old = load(part.total + v * 16), best = max(here, before);
  const Vec shrink = exp(sub(before, best)), share = exp(sub(here, best));
  store(part.total + v * 16, select(seen, add(mul(old, shrink), mul(total, share)), old));
  store(part.best + v * 16, select(seen, best, before));
  return {shrink, share};
}

// Both sides are scaled to the larger maximum. A partition of which a query sees nothing leaves no trace.
inline void merge(PartState into, PartState part, const ChunkShape& shape) {
  for (std::int64_t v = 0; v < shape.vectors; ++v) {
    const Vec best = load(into.best + v * 16), other = load(part.best + v * 16), total = load(into.total + v * 16);
    const Vec added = load(part.total + v * 16), larger = max(other, best);
    const Mask nothing = equal(added, zero());
    const Vec mine = exp(sub(best, larger)), theirs = exp(sub(other, larger));
    store(into.total + v * 16, select(nothing, total, add(mul(total, mine), mul(added, theirs))));
    store(into.best + v * 16, select(nothing, best, larger));
    for (std::int64_t i = v * shape.depth * 16; i < (v + 1) * shape.depth * 16; i += 16) {
      const Vec acc = load(into.acc + i);
      store(into.acc + i, select(nothing, acc, fma(acc, mine, mul(load(part.acc + i), theirs))));
    }
  }
}

}  // namespace headrace::kernels::HEADRACE_ISA
