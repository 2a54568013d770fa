// Sixteen floats in plain C++, for any processor. See simd.h for what every instruction set must offer.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/half.h"
#include "kernels/packed.h"

namespace headrace::kernels::HEADRACE_ISA {

inline constexpr int kTileRows = 2, kQuantisedTileRows = 2, kQuantisedWidePanels = 1;
constexpr int tile_panels(int) { return 1; }
inline constexpr int kLaneVectors = 1;
constexpr int lane_rows(int) { return 2; }

struct Vec {
  float v[16];
};
struct IntVec {
  std::uint32_t v[16];
};
struct Mask {
  bool v[16];
};
struct Bytes {
  std::uint8_t v[64];
};

template <typename Out, typename F>
inline Out each(F f) {
  Out out;
  for (int i = 0; i < 16; ++i) out.v[i] = f(i);
  return out;
}

inline Vec set1(float x) {
  return each<Vec>([&](int) { return x; });
}
inline Vec zero() { return set1(0.0f); }
inline Vec load(const float* p) {
  return each<Vec>([&](int i) { return p[i]; });
}
inline void store(float* p, Vec a) {
  for (int i = 0; i < 16; ++i) p[i] = a.v[i];
}
inline Vec load_part(const float* p, std::int64_t n) {
  return each<Vec>([&](int i) { return i < n ? p[i] : 0.0f; });
}
inline void store_part(float* p, Vec a, std::int64_t n) {
  for (int i = 0; i < 16 && i < n; ++i) p[i] = a.v[i];
}

inline Vec add(Vec a, Vec b) {
  return each<Vec>([&](int i) { return a.v[i] + b.v[i]; });
}
inline Vec sub(Vec a, Vec b) {
  return each<Vec>([&](int i) { return a.v[i] - b.v[i]; });
}
inline Vec mul(Vec a, Vec b) {
  return each<Vec>([&](int i) { return a.v[i] * b.v[i]; });
}
inline Vec div(Vec a, Vec b) {
  return each<Vec>([&](int i) { return a.v[i] / b.v[i]; });
}
// Two roundings: a fused multiply-add in software would be many times slower. So this instruction set keeps
// every promise within itself, but its bits differ from those of the others.
inline Vec fma(Vec a, Vec b, Vec c) {
  return each<Vec>([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
inline Vec fused(Vec a, Vec b, Vec c) {
  return each<Vec>([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
inline Vec abs(Vec a) {
  return each<Vec>([&](int i) { return __builtin_fabsf(a.v[i]); });
}
inline Vec max(Vec a, Vec b) {
  return each<Vec>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Vec min(Vec a, Vec b) {
  return each<Vec>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Vec round(Vec a) {
  return each<Vec>([&](int i) { return std::nearbyintf(a.v[i]); });
}

inline Mask less(Vec a, Vec b) {
  return each<Mask>([&](int i) { return a.v[i] < b.v[i]; });
}
inline Mask equal(Vec a, Vec b) {
  return each<Mask>([&](int i) { return a.v[i] == b.v[i]; });
}
inline Mask is_nan(Vec a) {
  return each<Mask>([&](int i) { return a.v[i] != a.v[i]; });
}
inline Mask either(Mask a, Mask b) {
  return each<Mask>([&](int i) { return a.v[i] || b.v[i]; });
}
inline Mask both(Mask a, Mask b) {
  return each<Mask>([&](int i) { return a.v[i] && b.v[i]; });
}
inline Mask lanes_from_to(std::int64_t low, std::int64_t high) {
  return each<Mask>([&](int i) { return i >= low && i < high; });
}
inline std::uint32_t bits(Mask m) {
  std::uint32_t out = 0;
  for (int i = 0; i < 16; ++i) out |= static_cast<std::uint32_t>(m.v[i]) << i;
  return out;
}
inline Vec select(Mask m, Vec yes, Vec no) {
  return each<Vec>([&](int i) { return m.v[i] ? yes.v[i] : no.v[i]; });
}
inline IntVec select(Mask m, IntVec yes, IntVec no) {
  return each<IntVec>([&](int i) { return m.v[i] ? yes.v[i] : no.v[i]; });
}

inline IntVec set1_int(std::uint32_t x) {
  return each<IntVec>([&](int) { return x; });
}
inline IntVec load_int(const std::int32_t* p, std::int64_t n) {
  return each<IntVec>([&](int i) { return i < n ? static_cast<std::uint32_t>(p[i]) : 0u; });
}
inline void store_int(std::int32_t* p, IntVec a) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<std::int32_t>(a.v[i]);
}
inline IntVec lane_numbers() {
  return each<IntVec>([&](int i) { return static_cast<std::uint32_t>(i); });
}
inline IntVec add(IntVec a, IntVec b) {
  return each<IntVec>([&](int i) { return a.v[i] + b.v[i]; });
}
inline IntVec bit_xor(IntVec a, IntVec b) {
  return each<IntVec>([&](int i) { return a.v[i] ^ b.v[i]; });
}
inline Mask less_signed(IntVec a, IntVec b) {
  return each<Mask>([&](int i) { return static_cast<std::int32_t>(a.v[i]) < static_cast<std::int32_t>(b.v[i]); });
}
inline void multiply_wide(IntVec a, std::uint32_t by, IntVec& high, IntVec& low) {
  for (int i = 0; i < 16; ++i) {
    const std::uint64_t product = static_cast<std::uint64_t>(a.v[i]) * by;
    high.v[i] = static_cast<std::uint32_t>(product >> 32);
    low.v[i] = static_cast<std::uint32_t>(product);
  }
}
inline Vec to_float(IntVec a) {
  return each<Vec>([&](int i) { return static_cast<float>(a.v[i]); });
}

inline Vec to_float_signed(IntVec a) {
  return each<Vec>([&](int i) { return static_cast<float>(static_cast<std::int32_t>(a.v[i])); });
}
template <int count>
inline IntVec shift_left(IntVec a) {
  return each<IntVec>([&](int i) { return a.v[i] << count; });
}

inline Vec load_half(const std::uint8_t* p) {
  std::uint16_t raw[16];
  __builtin_memcpy(raw, p, sizeof raw);
  return each<Vec>([&](int i) { return half_to_float(raw[i]); });
}
inline Vec load(const Bf16* p) {
  return each<Vec>([&](int i) { return __builtin_bit_cast(float, std::uint32_t{p[i].bits} << 16); });
}
inline Bytes load_bytes(const std::uint8_t* p) {
  Bytes out;
  __builtin_memcpy(out.v, p, sizeof out.v);
  return out;
}
inline Bytes low_nibbles(Bytes a) {
  for (std::uint8_t& code : a.v) code &= 15;
  return a;
}
inline Bytes high_nibbles(Bytes a) {
  for (std::uint8_t& code : a.v) code >>= 4;
  return a;
}
inline IntVec add_dots(IntVec acc, Bytes a, const std::int8_t* four) {
  for (int i = 0; i < 16; ++i) {
    std::int32_t dot = 0;
    for (int j = 0; j < 4; ++j) dot += a.v[4 * i + j] * four[j];
    acc.v[i] += static_cast<std::uint32_t>(dot);
  }
  return acc;
}
inline IntVec load_pairs(const std::int16_t* p) {
  IntVec out;
  __builtin_memcpy(out.v, p, sizeof out.v);
  return out;
}
inline void store_pairs(std::int16_t* p, IntVec a) { __builtin_memcpy(p, a.v, sizeof a.v); }
template <typename Code>
inline IntVec load_codes(const Code* p) {
  return each<IntVec>([&](int i) { return static_cast<std::uint32_t>(std::int32_t{p[i]}); });
}
inline void store_codes(std::int16_t* p, IntVec a) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<std::int16_t>(a.v[i]);
}
inline IntVec load_side_by_side(const std::int16_t* even, const std::int16_t* odd) {
  std::int16_t pairs[32];
  for (int i = 0; i < 16; ++i) pairs[2 * i] = even[i], pairs[2 * i + 1] = odd[i];
  return load_pairs(pairs);
}
inline IntVec pair_up(IntVec even, IntVec odd) {
  return each<IntVec>([&](int i) { return (even.v[i] & 0xFFFFu) | odd.v[i] << 16; });
}
// NaN becomes 0 here: its conversion would be undefined.
inline IntVec to_int(Vec a) {
  return each<IntVec>([&](int i) {
    const float whole = a.v[i] == a.v[i] ? std::nearbyintf(a.v[i]) : 0.0f;
    return static_cast<std::uint32_t>(static_cast<std::int32_t>(whole));
  });
}
inline IntVec set1_pair(const std::int16_t* two) {
  std::uint32_t pair;
  __builtin_memcpy(&pair, two, sizeof pair);
  return set1_int(pair);
}
inline std::int32_t half_of(std::uint32_t pair, int shift) { return static_cast<std::int16_t>(pair >> shift); }
inline IntVec add_pairs(IntVec acc, IntVec a, IntVec b) {
  return each<IntVec>([&](int i) {
    const std::int32_t dot = half_of(a.v[i], 0) * half_of(b.v[i], 0) + half_of(a.v[i], 16) * half_of(b.v[i], 16);
    return acc.v[i] + static_cast<std::uint32_t>(dot);
  });
}
inline void store_bytes(std::int8_t* p, Vec a) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<std::int8_t>(a.v[i]);
}

inline Vec pow2(Vec n) {
  return each<Vec>([&](int i) {
    // NaN must not reach the conversion: that would be undefined. The caller multiplies it back in.
    const float exponent = n.v[i] == n.v[i] ? n.v[i] : 0.0f;
    return std::bit_cast<float>((static_cast<std::int32_t>(exponent) + 127) << 23);
  });
}
inline void split(Vec x, Vec& mantissa, Vec& exponent) {
  for (int i = 0; i < 16; ++i) {
    const auto raw = std::bit_cast<std::int32_t>(x.v[i]);
    const std::int32_t e = (raw - 0x3F3504F3) >> 23;
    exponent.v[i] = static_cast<float>(e);
    mantissa.v[i] = std::bit_cast<float>(raw - e * (1 << 23));
  }
}

inline float sum(Vec a) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) a.v[i] += a.v[i + width];
  }
  return a.v[0];
}
inline float max_of(Vec a) {
  float out = a.v[0];
  for (float x : a.v) out = x > out ? x : out;
  return out;
}

inline void transpose(Vec (&r)[16]) {
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < i; ++j) {
      const float kept = r[i].v[j];
      r[i].v[j] = r[j].v[i];
      r[j].v[i] = kept;
    }
  }
}

}  // namespace headrace::kernels::HEADRACE_ISA
