// Sixteen floats in one zmm register. See simd.h for what every instruction set must offer.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/packed.h"

namespace headrace::kernels::HEADRACE_ISA {

inline constexpr int kTileRows = 12, kQuantisedTileRows = 12, kQuantisedWidePanels = 2;
constexpr int tile_panels(int rows) { return rows <= 6 ? 4 : 2; }
inline constexpr int kLaneVectors = 3;
constexpr int lane_rows(int vectors) { return vectors == 1 ? 16 : 8; }

struct Vec {
  __m512 v;
};
struct IntVec {
  __m512i v;
};
struct Mask {
  __mmask16 v;
};
struct Bytes {
  __m512i v;
};

inline __mmask16 first_lanes(std::int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }

inline Vec zero() { return {_mm512_setzero_ps()}; }
inline Vec set1(float x) { return {_mm512_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline Vec load_part(const float* p, std::int64_t n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
inline void store_part(float* p, Vec a, std::int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }

inline Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec fused(Vec a, Vec b, Vec c) { return fma(a, b, c); }
inline Vec abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec round(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }

inline Mask less(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
inline Mask equal(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
inline Mask is_nan(Vec a) { return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}; }
inline Mask either(Mask a, Mask b) { return {static_cast<__mmask16>(a.v | b.v)}; }
inline Mask both(Mask a, Mask b) { return {static_cast<__mmask16>(a.v & b.v)}; }
inline Mask lanes_from_to(std::int64_t low, std::int64_t high) {
  return {static_cast<__mmask16>(first_lanes(high) & ~first_lanes(low))};
}
inline std::uint32_t bits(Mask m) { return m.v; }
inline Vec select(Mask m, Vec yes, Vec no) { return {_mm512_mask_blend_ps(m.v, no.v, yes.v)}; }
inline IntVec select(Mask m, IntVec yes, IntVec no) { return {_mm512_mask_blend_epi32(m.v, no.v, yes.v)}; }

inline IntVec set1_int(std::uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
inline IntVec load_int(const std::int32_t* p, std::int64_t n) { return {_mm512_maskz_loadu_epi32(first_lanes(n), p)}; }
inline void store_int(std::int32_t* p, IntVec a) { _mm512_storeu_si512(p, a.v); }
inline IntVec lane_numbers() { return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)}; }
inline IntVec add(IntVec a, IntVec b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline IntVec bit_xor(IntVec a, IntVec b) { return {_mm512_xor_si512(a.v, b.v)}; }
inline Mask less_signed(IntVec a, IntVec b) { return {_mm512_cmplt_epi32_mask(a.v, b.v)}; }
inline void multiply_wide(IntVec a, std::uint32_t by, IntVec& high, IntVec& low) {
  const __m512i b = _mm512_set1_epi32(static_cast<int>(by));
  const __m512i even = _mm512_mul_epu32(a.v, b);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), b);
  high.v = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
  low.v = _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
}
inline Vec to_float(IntVec a) { return {_mm512_cvtepu32_ps(a.v)}; }

inline Vec to_float_signed(IntVec a) { return {_mm512_cvtepi32_ps(a.v)}; }
template <int count>
inline IntVec shift_left(IntVec a) {
  return {_mm512_slli_epi32(a.v, count)};
}

inline Vec load_half(const std::uint8_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline Vec load(const Bf16* p) {
  const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16))};
}
inline Bytes load_bytes(const std::uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline Bytes low_nibbles(Bytes a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
inline Bytes high_nibbles(Bytes a) { return low_nibbles({_mm512_srli_epi16(a.v, 4)}); }
inline IntVec add_dots(IntVec acc, Bytes a, const std::int8_t* four) {
  std::int32_t quad;
  __builtin_memcpy(&quad, four, sizeof quad);
  return {_mm512_dpbusd_epi32(acc.v, a.v, _mm512_set1_epi32(quad))};
}
inline IntVec load_pairs(const std::int16_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store_pairs(std::int16_t* p, IntVec a) { _mm512_storeu_si512(p, a.v); }
inline IntVec load_codes(const std::int16_t* p) {
  return {_mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline IntVec load_codes(const std::int8_t* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline void store_codes(std::int16_t* p, IntVec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.v));
}
inline IntVec pair_up(IntVec even, IntVec odd) {
  return {_mm512_mask_blend_epi16(0xAAAAAAAA, even.v, _mm512_slli_epi32(odd.v, 16))};
}
inline IntVec load_side_by_side(const std::int16_t* even, const std::int16_t* odd) {
  const auto half = [](const std::int16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); };
  const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(half(even)), half(odd), 1);
  const __m512i order =
      _mm512_setr_epi32(0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005, 0x160006, 0x170007, 0x180008,
                        0x190009, 0x1A000A, 0x1B000B, 0x1C000C, 0x1D000D, 0x1E000E, 0x1F000F);
  return {_mm512_permutexvar_epi16(order, both)};
}
inline IntVec to_int(Vec a) { return {_mm512_cvtps_epi32(a.v)}; }
inline IntVec set1_pair(const std::int16_t* two) {
  std::int32_t pair;
  __builtin_memcpy(&pair, two, sizeof pair);
  return {_mm512_set1_epi32(pair)};
}
// Not the intrinsic: GCC 12 copies the accumulator before and after each one of those.
inline IntVec add_pairs(IntVec acc, IntVec a, IntVec b) {
  asm("vpdpwssd %2, %1, %0" : "+v"(acc.v) : "v"(a.v), "v"(b.v));
  return acc;
}
inline void store_bytes(std::int8_t* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
}

inline Vec pow2(Vec n) {
  const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))};
}
inline void split(Vec x, Vec& mantissa, Vec& exponent) {
  const __m512i raw = _mm512_castps_si512(x.v);
  const __m512i e = _mm512_srai_epi32(_mm512_sub_epi32(raw, _mm512_set1_epi32(0x3F3504F3)), 23);
  exponent.v = _mm512_cvtepi32_ps(e);
  mantissa.v = _mm512_castsi512_ps(_mm512_sub_epi32(raw, _mm512_slli_epi32(e, 23)));
}

inline float sum(Vec a) {
  const __m256 high = _mm512_extractf32x8_ps(a.v, 1);
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float max_of(Vec a) { return _mm512_reduce_max_ps(a.v); }

// Row i, lane j becomes row j, lane i: pairs, then quads, then 128-bit quarters.
inline void transpose(Vec (&r)[16]) {
  __m512 t[16], u[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_ps(r[2 * i].v, r[2 * i + 1].v);
    t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i].v, r[2 * i + 1].v);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    u[4 * i] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    u[4 * i + 1] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0xEE);
    u[4 * i + 2] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    u[4 * i + 3] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xEE);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512 a = _mm512_shuffle_f32x4(u[i], u[4 + i], 0x88), b = _mm512_shuffle_f32x4(u[i], u[4 + i], 0xDD);
    const __m512 c = _mm512_shuffle_f32x4(u[8 + i], u[12 + i], 0x88);
    const __m512 d = _mm512_shuffle_f32x4(u[8 + i], u[12 + i], 0xDD);
    r[i].v = _mm512_shuffle_f32x4(a, c, 0x88);
    r[4 + i].v = _mm512_shuffle_f32x4(b, d, 0x88);
    r[8 + i].v = _mm512_shuffle_f32x4(a, c, 0xDD);
    r[12 + i].v = _mm512_shuffle_f32x4(b, d, 0xDD);
  }
}

}  // namespace headrace::kernels::HEADRACE_ISA
