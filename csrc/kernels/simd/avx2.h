// Sixteen floats in two ymm registers. See simd.h for what every instruction set must offer.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/packed.h"

namespace headrace::kernels::HEADRACE_ISA {

inline constexpr int kTileRows = 6, kQuantisedTileRows = 4, kQuantisedWidePanels = 1;
constexpr int tile_panels(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
inline constexpr int kLaneVectors = 1;
constexpr int lane_rows(int) { return 4; }

struct Vec {
  __m256 a, b;
};
struct IntVec {
  __m256i a, b;
};
struct Mask {
  __m256 a, b;
};
struct Bytes {
  __m256i a, b;
};

inline __m256i below(std::int64_t n) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lanes);
}

inline Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Vec set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Vec x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline Vec load_part(const float* p, std::int64_t n) {
  return {_mm256_maskload_ps(p, below(n)), _mm256_maskload_ps(p + 8, below(n - 8))};
}
inline void store_part(float* p, Vec x, std::int64_t n) {
  _mm256_maskstore_ps(p, below(n), x.a);
  _mm256_maskstore_ps(p + 8, below(n - 8), x.b);
}

inline Vec add(Vec x, Vec y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline Vec sub(Vec x, Vec y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline Vec mul(Vec x, Vec y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline Vec div(Vec x, Vec y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline Vec fma(Vec x, Vec y, Vec z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline Vec fused(Vec x, Vec y, Vec z) { return fma(x, y, z); }
inline Vec abs(Vec x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline Vec max(Vec x, Vec y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline Vec min(Vec x, Vec y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline Vec round(Vec x) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, mode), _mm256_round_ps(x.b, mode)};
}

inline Mask less(Vec x, Vec y) { return {_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)}; }
inline Mask equal(Vec x, Vec y) { return {_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ)}; }
inline Mask is_nan(Vec x) { return {_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q), _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q)}; }
inline Mask either(Mask x, Mask y) { return {_mm256_or_ps(x.a, y.a), _mm256_or_ps(x.b, y.b)}; }
inline Mask both(Mask x, Mask y) { return {_mm256_and_ps(x.a, y.a), _mm256_and_ps(x.b, y.b)}; }
inline Mask lanes_from_to(std::int64_t low, std::int64_t high) {
  return {_mm256_castsi256_ps(_mm256_andnot_si256(below(low), below(high))),
          _mm256_castsi256_ps(_mm256_andnot_si256(below(low - 8), below(high - 8)))};
}
inline std::uint32_t bits(Mask m) {
  return static_cast<std::uint32_t>(_mm256_movemask_ps(m.a) | (_mm256_movemask_ps(m.b) << 8));
}
inline Vec select(Mask m, Vec yes, Vec no) {
  return {_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b)};
}
inline IntVec select(Mask m, IntVec yes, IntVec no) {
  return {_mm256_blendv_epi8(no.a, yes.a, _mm256_castps_si256(m.a)),
          _mm256_blendv_epi8(no.b, yes.b, _mm256_castps_si256(m.b))};
}

inline IntVec set1_int(std::uint32_t x) {
  const __m256i v = _mm256_set1_epi32(static_cast<int>(x));
  return {v, v};
}
inline IntVec load_int(const std::int32_t* p, std::int64_t n) {
  return {_mm256_maskload_epi32(p, below(n)), _mm256_maskload_epi32(p + 8, below(n - 8))};
}
inline void store_int(std::int32_t* p, IntVec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.b);
}
inline IntVec lane_numbers() {
  return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}
inline IntVec add(IntVec x, IntVec y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline IntVec bit_xor(IntVec x, IntVec y) { return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
inline Mask less_signed(IntVec x, IntVec y) {
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(y.a, x.a)), _mm256_castsi256_ps(_mm256_cmpgt_epi32(y.b, x.b))};
}
inline void multiply_half(__m256i a, __m256i by, __m256i& high, __m256i& low) {
  const __m256i even = _mm256_mul_epu32(a, by), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), by);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
}
inline void multiply_wide(IntVec x, std::uint32_t by, IntVec& high, IntVec& low) {
  const __m256i b = _mm256_set1_epi32(static_cast<int>(by));
  multiply_half(x.a, b, high.a, low.a);
  multiply_half(x.b, b, high.b, low.b);
}
// Unsigned: both halves convert exactly, and the one rounding is that of the fused sum.
inline __m256 unsigned_to_float(__m256i x) {
  const __m256 high = _mm256_cvtepi32_ps(_mm256_srli_epi32(x, 16));
  const __m256 low = _mm256_cvtepi32_ps(_mm256_and_si256(x, _mm256_set1_epi32(0xFFFF)));
  return _mm256_fmadd_ps(high, _mm256_set1_ps(65536.0f), low);
}
inline Vec to_float(IntVec x) { return {unsigned_to_float(x.a), unsigned_to_float(x.b)}; }

inline Vec to_float_signed(IntVec x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
template <int count>
inline IntVec shift_left(IntVec x) {
  return {_mm256_slli_epi32(x.a, count), _mm256_slli_epi32(x.b, count)};
}

inline Vec load_half(const std::uint8_t* p) {
  const auto* const at = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(at)), _mm256_cvtph_ps(_mm_loadu_si128(at + 1))};
}
inline __m256 widen_half(const Bf16* p) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
}
inline Vec load(const Bf16* p) { return {widen_half(p), widen_half(p + 8)}; }
inline Bytes load_bytes(const std::uint8_t* p) {
  const auto* const at = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}
inline Bytes low_nibbles(Bytes x) {
  const __m256i low = _mm256_set1_epi8(15);
  return {_mm256_and_si256(x.a, low), _mm256_and_si256(x.b, low)};
}
inline Bytes high_nibbles(Bytes x) { return low_nibbles({_mm256_srli_epi16(x.a, 4), _mm256_srli_epi16(x.b, 4)}); }
// VPMADDUBSW would saturate at 2^15, so bytes 0, 2 and bytes 1, 3 of each four are widened to 16 bits first.
inline __m256i dots_half(__m256i acc, __m256i w, __m256i even, __m256i odd) {
  const __m256i w_even = _mm256_and_si256(w, _mm256_set1_epi16(0xFF)), w_odd = _mm256_srli_epi16(w, 8);
  acc = _mm256_add_epi32(acc, _mm256_madd_epi16(w_even, even));
  return _mm256_add_epi32(acc, _mm256_madd_epi16(w_odd, odd));
}
inline IntVec add_dots(IntVec acc, Bytes x, const std::int8_t* four) {
  std::int32_t quad;
  __builtin_memcpy(&quad, four, sizeof quad);
  const __m256i a = _mm256_set1_epi32(quad);
  const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8), odd = _mm256_srai_epi16(a, 8);
  return {dots_half(acc.a, x.a, even, odd), dots_half(acc.b, x.b, even, odd)};
}
inline IntVec load_pairs(const std::int16_t* p) {
  const auto* const at = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}
inline void store_pairs(std::int16_t* p, IntVec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 16), x.b);
}
inline IntVec load_codes(const std::int16_t* p) {
  const auto* const at = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtepi16_epi32(_mm_loadu_si128(at)), _mm256_cvtepi16_epi32(_mm_loadu_si128(at + 1))};
}
inline IntVec load_codes(const std::int8_t* p) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(raw), _mm256_cvtepi8_epi32(_mm_srli_si128(raw, 8))};
}
inline void store_codes(std::int16_t* p, IntVec x) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xD8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), words);
}
inline __m256i pair_half(__m256i even, __m256i odd) {
  return _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xAA);
}
inline IntVec pair_up(IntVec even, IntVec odd) { return {pair_half(even.a, odd.a), pair_half(even.b, odd.b)}; }
inline IntVec load_side_by_side(const std::int16_t* even, const std::int16_t* odd) {
  const auto quarter = [](const std::int16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); };
  const auto weave = [&](int at) {
    const __m128i e = quarter(even + at), o = quarter(odd + at);
    return _mm256_set_m128i(_mm_unpackhi_epi16(e, o), _mm_unpacklo_epi16(e, o));
  };
  return {weave(0), weave(8)};
}
inline IntVec to_int(Vec x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline IntVec set1_pair(const std::int16_t* two) {
  std::uint32_t pair;
  __builtin_memcpy(&pair, two, sizeof pair);
  return set1_int(pair);
}
inline IntVec add_pairs(IntVec acc, IntVec x, IntVec y) {
  return {_mm256_add_epi32(acc.a, _mm256_madd_epi16(x.a, y.a)), _mm256_add_epi32(acc.b, _mm256_madd_epi16(x.b, y.b))};
}
inline void store_bytes(std::int8_t* p, Vec x) {
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
  const __m256i ordered = _mm256_permute4x64_epi64(words, 0xD8);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

inline __m256 pow2_half(__m256 n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
inline Vec pow2(Vec n) { return {pow2_half(n.a), pow2_half(n.b)}; }
inline void split_half(__m256 x, __m256& mantissa, __m256& exponent) {
  const __m256i raw = _mm256_castps_si256(x);
  const __m256i e = _mm256_srai_epi32(_mm256_sub_epi32(raw, _mm256_set1_epi32(0x3F3504F3)), 23);
  exponent = _mm256_cvtepi32_ps(e);
  mantissa = _mm256_castsi256_ps(_mm256_sub_epi32(raw, _mm256_slli_epi32(e, 23)));
}
inline void split(Vec x, Vec& mantissa, Vec& exponent) {
  split_half(x.a, mantissa.a, exponent.a);
  split_half(x.b, mantissa.b, exponent.b);
}

inline float sum(Vec x) {
  const __m256 eight = _mm256_add_ps(x.a, x.b);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float max_of(Vec x) {
  const __m256 eight = _mm256_max_ps(x.a, x.b);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

inline void transpose_8x8(__m256 (&r)[8]) {
  __m256 t[8], u[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xEE);
    u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xEE);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(u[i], u[4 + i], 0x20);
    r[4 + i] = _mm256_permute2f128_ps(u[i], u[4 + i], 0x31);
  }
}
// Row i, lane j becomes row j, lane i: four quarters, the off-diagonal two exchanged.
inline void transpose(Vec (&r)[16]) {
  __m256 q[4][8];
  for (int i = 0; i < 8; ++i) {
    q[0][i] = r[i].a, q[1][i] = r[i].b, q[2][i] = r[8 + i].a, q[3][i] = r[8 + i].b;
  }
  for (auto& quarter : q) transpose_8x8(quarter);
  for (int i = 0; i < 8; ++i) r[i] = {q[0][i], q[2][i]}, r[8 + i] = {q[1][i], q[3][i]};
}

}  // namespace headrace::kernels::HEADRACE_ISA
