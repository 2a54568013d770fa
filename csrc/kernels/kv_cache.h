// How keys and values lie in a paged cache: one row per token and head, in one of four formats.
//
// Rows of int16 and int8 are codes times a scale of their own. The scale, a float32, lies behind the codes of its row
// at whatever alignment that gives, so a row, and with it a block, can be copied as it is.
#pragma once

#include <cstdint>

namespace headrace::kernels {

enum class KvFormat { kFloat32, kBfloat16, kInt16, kInt8 };

constexpr bool has_codes(KvFormat format) { return format == KvFormat::kInt16 || format == KvFormat::kInt8; }

constexpr std::int64_t element_bytes(KvFormat format) {
  return format == KvFormat::kFloat32 ? 4 : format == KvFormat::kInt8 ? 1 : 2;
}

// Bytes that a row of codes is longer than its head.
constexpr std::int64_t scale_bytes(KvFormat format) { return has_codes(format) ? 4 : 0; }

constexpr std::int64_t row_bytes(KvFormat format, std::int64_t head_dim) {
  return head_dim * element_bytes(format) + scale_bytes(format);
}

// Which row: `index` counts those of a block, head * block_size + offset.
struct CacheRow {
  std::int64_t block, index;
};

// Rows of keys or values, (blocks, kv_heads, block_size) of them. Those of a block lie side by side; from one block to
// the next it is `block_bytes`, so that the blocks of all layers can lie in turns.
struct KvCache {
  std::uint8_t* data;
  KvFormat format;
  std::int64_t block_bytes;

  KvCache(void* at, KvFormat as, std::int64_t bytes)
      : data(static_cast<std::uint8_t*>(at)), format(as), block_bytes(bytes) {}

  std::uint8_t* row(CacheRow row, std::int64_t head_dim) const {
    return data + row.block * block_bytes + row.index * row_bytes(format, head_dim);
  }
};

}  // namespace headrace::kernels
