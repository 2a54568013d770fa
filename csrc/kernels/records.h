// Byte records in the blocks of a pool, as sequences find them, and what the kernels over them take. A record is one
// row of values in a narrow format; its blocks lie anywhere.
#pragma once

#include <cstdint>

namespace headrace::kernels {

// kMxfp8: an e4m3 code per value, then a power of two (its exponent + 127) per 32 values.
// kKv4: two e2m1 codes per byte, the even column below, then an e4m3 scale per 16 values.
enum class RecordFormat { kMxfp8, kKv4 };

constexpr std::int64_t record_bytes(RecordFormat format, std::int64_t columns) {
  return format == RecordFormat::kMxfp8 ? columns + columns / 32 : columns / 2 + columns / 16;
}

// Row r of sequence s lies in block table[s, r / rows], `rows` of them from byte `offset` on; table (S, max_blocks).
struct PagedRecords {
  const std::uint8_t* blocks = nullptr;
  std::int64_t block_bytes = 0, num_blocks = 0;
  const std::int32_t* table = nullptr;
  std::int64_t slices = 0, max_blocks = 0;
  std::int64_t offset = 0, rows = 1, width = 0;

  const std::uint8_t* at(std::int64_t slice, std::int64_t row) const {
    const std::int64_t block = table[slice * max_blocks + row / rows];
    return blocks + block * block_bytes + offset + row % rows * width;
  }
};

// q, out (T, heads, depth); rows [query_start[s], query_start[s + 1]) of slice s end at position seq_lens[s]. A row
// sees the `reach` positions up to its own, none before floors[s], and the rows chosen (T, most), ascending, -1 behind
// them, of `shared`, which has no blocks when there is nothing to choose. sink (heads): a logit that takes weight
// alone.
struct LatentAttentionArgs {
  const float* q;
  const std::int32_t* query_start;
  const std::int32_t* seq_lens;
  const std::int32_t* floors;
  PagedRecords window, shared;
  RecordFormat shared_format;
  const std::int32_t* chosen;
  const float* sink;
  float* out;
  std::int64_t tokens, slices, heads, depth, reach, most;
};

// One row of them: its keys, in order, are its values too; `weights` has room for (heads, whole vectors of keys).
struct LatentRow {
  const float* q;
  const float* const* keys;
  std::int64_t count, heads, depth;
  const float* sink;
  float* weights;
  float* out;
};

// What each row chooses of the first visible[t] keys of its slice: q (T, heads, depth), weights (T, heads), keys as
// e2m1 codes and powers of two per 32. entries (T, count) and blocks (T, num_blocks) of block_size keys: ascending, -1
// behind them. among (T, among_blocks), likewise: the only blocks to choose from; null: all.
struct ChooseArgs {
  const float* q;
  const float* weights;
  const std::int32_t* query_start;
  const std::int32_t* visible;
  PagedRecords codes, scales;
  const std::int32_t* among;
  std::int32_t* entries;
  std::int32_t* blocks;
  std::int64_t tokens, slices, heads, depth, count, among_blocks, num_blocks, block_size;
  bool rounded;  // scores to bfloat16
};

// Scores of keys [first, end) of a slice for rows [row, row + rows): row i of them at out + i * stride, from `first` on
// and to the end of a whole vector.
struct ScoreTile {
  std::int64_t slice, row, rows, first, end;
  float* out;
  std::int64_t stride;
};
inline constexpr std::int64_t kScoreKeys = 256;  // end - first at most; first is a multiple of it
inline constexpr std::int64_t kMostIndexDepth = 256;

constexpr std::int64_t score_scratch_floats(std::int64_t heads, std::int64_t depth) {
  return kScoreKeys * (heads + depth) + 16 * depth;
}

// Both throw std::invalid_argument, before any work, naming an index that would leave what it indexes.
void latent_attention(const LatentAttentionArgs& args);
void choose_entries(const ChooseArgs& args);

}  // namespace headrace::kernels
