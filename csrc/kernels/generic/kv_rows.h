// Writing and reading single rows of a paged cache (see kv_cache.h). Rounding is to nearest even everywhere, and a row
// is a function of its own values alone.
#pragma once

#include "kernels/attention.h"
#include "kernels/generic/math.h"

namespace headrace::kernels::HEADRACE_ISA {

inline Vec load_some(const float* p, std::int64_t live) { return live >= 16 ? load(p) : load_part(p, live); }
inline void store_some(float* p, Vec x, std::int64_t live) { live >= 16 ? store(p, x) : store_part(p, x, live); }
inline Vec load_some(const Bf16* p, std::int64_t live) {
  if (live >= 16) return load(p);
  Bf16 padded[16] = {};
  for (std::int64_t i = 0; i < live; ++i) padded[i] = p[i];
  return load(padded);
}

// The largest code of a format: products of two rows, and of 32 weights with values, must fit an int32 sum.
inline std::int32_t largest_code(KvFormat format, std::int64_t head_dim) {
  if (format == KvFormat::kInt8) return 127;
  const auto fits =
      static_cast<std::int32_t>(__builtin_sqrt(2147483647.0 / static_cast<double>(padded_depth(head_dim))));
  return fits < 8191 ? fits : 8191;
}

// Magnitude of the largest value; NaN when one of them is not finite.
inline float magnitude(const float* x, std::int64_t count) {
  Vec most = zero(), probe = zero();
  for (std::int64_t i = 0; i < count; i += 16) {
    const Vec v = load_some(x + i, count - i);
    most = max(most, abs(v));
    probe = fma(v, zero(), probe);
  }
  return max_of(most) + sum(probe);
}

// Rounds x to codes of at most `largest` and returns their scale. All codes are 0 where the scale is 0 (everything is
// next to nothing) or NaN (something is not finite).
template <typename Code>
inline float encode(const float* x, std::int64_t count, std::int32_t largest, Code* to) {
  constexpr float least = 1e-30f;
  const float most = magnitude(x, count);
  if (!(most >= least)) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = 0;
    return most == most ? 0 : most;
  }
  const float scale = most / static_cast<float>(largest);
  for (std::int64_t i = 0; i < count; i += 16) {
    std::int16_t codes[16];
    store_codes(codes, to_int(div(load_some(x + i, count - i), set1(scale))));
    for (std::int64_t j = 0; j < 16 && i + j < count; ++j) to[i + j] = static_cast<Code>(codes[j]);
  }
  return scale;
}

// A NaN stays one.
inline Bf16 to_bf16(float x) {
  std::uint32_t raw;
  __builtin_memcpy(&raw, &x, sizeof raw);
  if ((raw & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>(raw >> 16 | 0x40u)};
  return {static_cast<std::uint16_t>((raw + 0x7fffu + (raw >> 16 & 1)) >> 16)};
}

template <typename Code>
inline void write_codes(const float* x, std::int64_t head_dim, std::int32_t largest, std::uint8_t* row) {
  const float scale = encode(x, head_dim, largest, reinterpret_cast<Code*>(row));
  __builtin_memcpy(row + head_dim * static_cast<std::int64_t>(sizeof(Code)), &scale, sizeof scale);
}

// Writes x (head_dim) to a row of the cache.
inline void write_row(const float* x, std::int64_t head_dim, KvCache cache, CacheRow to) {
  std::uint8_t* const row = cache.row(to, head_dim);
  const std::int32_t largest = largest_code(cache.format, head_dim);
  switch (cache.format) {
    case KvFormat::kFloat32:
      for (std::int64_t i = 0; i < head_dim; i += 16) {
        store_some(reinterpret_cast<float*>(row) + i, load_some(x + i, head_dim - i), head_dim - i);
      }
      return;
    case KvFormat::kBfloat16:
      for (std::int64_t i = 0; i < head_dim; ++i) reinterpret_cast<Bf16*>(row)[i] = to_bf16(x[i]);
      return;
    case KvFormat::kInt16:
      return write_codes<std::int16_t>(x, head_dim, largest, row);
    case KvFormat::kInt8:
      return write_codes<std::int8_t>(x, head_dim, largest, row);
  }
}

// Reads a row of floats or bfloat16, padded with zeros to whole vectors.
inline void read_row(const std::uint8_t* row, KvFormat format, std::int64_t head_dim, float* to) {
  for (std::int64_t i = 0; i < head_dim; i += 16) {
    const std::int64_t live = head_dim - i;
    store(to + i, format == KvFormat::kBfloat16 ? load_some(reinterpret_cast<const Bf16*>(row) + i, live)
                                                : load_some(reinterpret_cast<const float*>(row) + i, live));
  }
}

template <typename Code>
inline IntVec load_some(const Code* p, std::int64_t live) {
  if (live >= 16) return load_codes(p);
  Code padded[16] = {};
  for (std::int64_t i = 0; i < live; ++i) padded[i] = p[i];
  return load_codes(padded);
}

// Reads a row of codes, padded likewise.
template <typename Code>
inline void read_codes(const Code* row, std::int64_t head_dim, std::int16_t* to) {
  std::int64_t d = 0;
  if constexpr (sizeof(Code) == sizeof *to) {
    for (; d + 32 <= head_dim; d += 32) store_pairs(to + d, load_pairs(row + d));  // as they are
  }
  for (; d < head_dim; d += 16) store_codes(to + d, load_some(row + d, head_dim - d));
}

// Reads two rows of codes into pairs, value by value, padded likewise; a row that is not there is zeros.
template <typename Code>
inline void read_pairs(const Code* even, const Code* odd, std::int64_t head_dim, std::int16_t* to) {
  std::int64_t d = 0;
  if constexpr (sizeof(Code) == sizeof *to) {
    for (; even && odd && d + 16 <= head_dim; d += 16) store_pairs(to + 2 * d, load_side_by_side(even + d, odd + d));
  }
  for (; d < head_dim; d += 16) {
    const IntVec low = even ? load_some(even + d, head_dim - d) : set1_int(0);
    const IntVec high = odd ? load_some(odd + d, head_dim - d) : set1_int(0);
    store_pairs(to + 2 * d, pair_up(low, high));
  }
}

}  // namespace headrace::kernels::HEADRACE_ISA
