// Records become floats, exactly. Codes go by way of half precision, whose conversion knows subnormals: a code's bits,
// moved to where a half has them, are the value times a power of two.
#pragma once

#include "kernels/records.h"
#include "kernels/simd/simd.h"

namespace headrace::kernels::HEADRACE_ISA {

inline constexpr std::int64_t kMostColumns = 1024;

// 2^(byte - 127): 0 is the subnormal 2^-127, 255 infinity.
inline float power_of_two(std::uint8_t byte) {
  const std::uint32_t raw = byte == 0 ? 0x00400000u : std::uint32_t{byte} << 23;
  float value;
  __builtin_memcpy(&value, &raw, sizeof value);
  return value;
}

inline float e4m3(std::uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7F) == 0x7F) return __builtin_nanf("");
  const std::uint8_t power = static_cast<std::uint8_t>(117 + (exponent == 0 ? 1 : exponent));  // of the last bit
  const float size = static_cast<float>(exponent == 0 ? mantissa : 8 + mantissa) * power_of_two(power);
  return code & 0x80 ? -size : size;
}

inline Vec widen(const std::uint16_t* halves) { return load_half(reinterpret_cast<const std::uint8_t*>(halves)); }

inline void unpack_mxfp8(const std::uint8_t* record, std::int64_t columns, float* out) {
  std::uint16_t halves[kMostColumns];
  for (std::int64_t i = 0; i < columns; ++i) {
    halves[i] = static_cast<std::uint16_t>((record[i] & 0x80) << 8 | (record[i] & 0x7F) << 7);
  }
  const Vec nothing = set1(1.875f), nan = set1(__builtin_nanf("")), up = set1(256.0f);  // 1.875: where the NaN lands
  for (std::int64_t i = 0; i < columns; i += 16) {
    const Vec half = widen(halves + i), value = mul(half, up), scale = set1(power_of_two(record[columns + i / 32]));
    store(out + i, mul(select(equal(abs(half), nothing), nan, value), scale));
  }
}

// `columns` e2m1 codes as halves 2^-14 as large.
inline void spread_e2m1(const std::uint8_t* codes, std::int64_t columns, std::uint16_t* halves) {
  for (std::int64_t i = 0; i < columns / 2; ++i) {
    halves[2 * i] = static_cast<std::uint16_t>((codes[i] & 7) << 9 | (codes[i] & 8) << 12);
    halves[2 * i + 1] = static_cast<std::uint16_t>((codes[i] & 0x70) << 5 | (codes[i] & 0x80) << 8);
  }
}

inline void unpack_kv4(const std::uint8_t* record, std::int64_t columns, float* out) {
  std::uint16_t halves[kMostColumns];
  spread_e2m1(record, columns, halves);
  const Vec up = set1(16384.0f);
  for (std::int64_t i = 0; i < columns; i += 16) {
    store(out + i, mul(mul(widen(halves + i), up), set1(e4m3(record[columns / 2 + i / 16]))));
  }
}

inline void unpack_mxfp4(const std::uint8_t* codes, const std::uint8_t* scales, std::int64_t columns, float* out) {
  std::uint16_t halves[kMostColumns];
  spread_e2m1(codes, columns, halves);
  const Vec up = set1(16384.0f);
  for (std::int64_t i = 0; i < columns; i += 16) {
    store(out + i, mul(mul(widen(halves + i), up), set1(power_of_two(scales[i / 32]))));
  }
}

inline void unpack_record(RecordFormat format, const std::uint8_t* record, std::int64_t columns, float* out) {
  if (format == RecordFormat::kMxfp8) {
    unpack_mxfp8(record, columns, out);
  } else {
    unpack_kv4(record, columns, out);
  }
}

}  // namespace headrace::kernels::HEADRACE_ISA
