// Paged attention: cuts a step into chunks of query rows and spreads them over the threads. The arithmetic is
// in generic/attention.h.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace headrace::kernels {

inline constexpr std::int64_t kPartition = 512;  // absolute positions that share one running softmax

// Consecutive query rows of one slice.
struct AttentionChunk {
  std::int64_t slice, first_token, first_position, rows;

  std::int64_t end_position() const { return first_position + rows; }
  std::int64_t first_seen(std::int64_t window) const {
    return window > 0 && first_position >= window ? first_position - window + 1 : 0;
  }
  std::int64_t first_partition(std::int64_t window) const { return first_seen(window) / kPartition; }
  std::int64_t end_partition() const { return (end_position() + kPartition - 1) / kPartition; }
};

// The positions [first, end) of one KV head that an item of work reads for a chunk. Without a chunk: none.
struct KeyRange {
  const AttentionChunk* chunk = nullptr;
  std::int64_t kv_head = 0, first = 0, end = 0;

  static KeyRange of_chunk(const AttentionChunk& chunk, std::int64_t kv_head, std::int64_t window) {
    return {&chunk, kv_head, chunk.first_seen(window), chunk.end_position()};
  }
  static KeyRange of_part(const AttentionChunk& chunk, std::int64_t kv_head, std::int64_t partition,
                          std::int64_t window) {
    const std::int64_t begin = partition * kPartition, end = begin + kPartition;
    const std::int64_t first = chunk.first_seen(window), last = chunk.end_position();
    return {&chunk, kv_head, first > begin ? first : begin, last < end ? last : end};
  }
};

// The head size as the kernels hold it: whole vectors of sixteen.
constexpr std::int64_t padded_depth(std::int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

// Queries as the kernels hold them: lanes of whole vectors.
constexpr std::int64_t query_lanes(std::int64_t queries) { return (queries + 15) / 16 * 16; }

// Floats of one partition's result: maximum and sum for each query, and its weighted values.
constexpr std::int64_t part_floats(std::int64_t queries, std::int64_t head_dim) {
  return query_lanes(queries) * (2 + padded_depth(head_dim));
}

inline constexpr std::int64_t kMostLaneVectors = 3;  // vectors of queries that are worked on side by side
inline constexpr std::int64_t kFewQueries = 8;       // up to so many have positions in the lanes instead

// Floats of scratch memory that a chunk needs (see ChunkScratch).
constexpr std::int64_t scratch_floats(std::int64_t queries, std::int64_t head_dim) {
  const std::int64_t depth = padded_depth(head_dim), tile = 32;
  return query_lanes(queries) * (depth + 1) + 16 * depth + 3 * tile * depth + 2 * tile + 2 * kFewQueries * depth +
         tile * kMostLaneVectors * 24 + 2 * part_floats(queries, head_dim);
}

// Rows beyond the last slice (padding) become zeros.
void paged_attention(const AttentionArgs& args);

}  // namespace headrace::kernels
