// SHA-256 by the SHA instructions of x86, chosen at run time. The same bytes as the scalar code, about five times
// faster.
#include "core/sha256.h"
#include "core/sha256_rounds.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace headrace::core {

#if defined(__x86_64__)
namespace {

bool has_instructions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool sha = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA);
  return sha && __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("ssse3");
}

__m128i load(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }

// The instructions keep the state as (a, b, e, f) and (c, d, g, h), highest lane first, and swap the two every two
// rounds.
__attribute__((target("sha,sse4.1,ssse3"))) void compress(std::uint32_t* state, const std::uint8_t* chunks,
                                                          std::size_t count) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  const __m128i cdab = _mm_shuffle_epi32(load(state), 0xb1), efgh = _mm_shuffle_epi32(load(state + 4), 0x1b);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
  for (; count > 0; --count, chunks += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];  // the last sixteen words of the message schedule
    for (int i = 0; i < 4; ++i) w[i] = _mm_shuffle_epi8(load(chunks + 16 * i), big_endian);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const __m128i last = w[(i + 3) % 4];
      if (i >= 4) {
        const __m128i early = _mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]);
        w[i % 4] = _mm_sha256msg2_epu32(_mm_add_epi32(early, _mm_alignr_epi8(last, w[(i + 2) % 4], 4)), last);
      }
      const __m128i words = _mm_add_epi32(w[i % 4], load(kSha256Round + 4 * i));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, words);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(words, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before), cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

}  // namespace
#endif

bool sha256_compress_by_instruction([[maybe_unused]] std::uint32_t* state, [[maybe_unused]] const std::uint8_t* chunks,
                                    [[maybe_unused]] std::size_t count) {
#if defined(__x86_64__)
  static const bool has = has_instructions();
  if (has) compress(state, chunks, count);
  return has;
#else
  return false;
#endif
}

}  // namespace headrace::core
