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

// The head size as the kernels hold it: whole vectors of sixteen.
constexpr std::int64_t padded_depth(std::int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

// Floats of one partition's result: maximum and sum for each query, and its weighted values.
constexpr std::int64_t part_floats(std::int64_t queries, std::int64_t head_dim) {
  return queries * (2 + padded_depth(head_dim));
}

// Rows beyond the last slice (padding) become zeros.
void paged_attention(const AttentionArgs& args);

}  // namespace headrace::kernels
