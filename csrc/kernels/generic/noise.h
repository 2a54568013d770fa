// The sampler's noise: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2,
// 3", 2011) keyed by the seed, with counter (position low, position high, id, 0). Word 0 gives one uniform
// per id, so a draw depends on (seed, position, id) alone. The integers are the same in every backend.
#pragma once

#include "kernels/generic/math.h"
#include "kernels/ops.h"

namespace headrace::kernels::HEADRACE_ISA {

struct PhiloxCounter {
  IntVec c[4];
};

// Ten rounds on sixteen counters at once.
inline PhiloxCounter philox(PhiloxCounter x, std::uint64_t key) {
  auto key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    IntVec high0, low0, high1, low1;
    multiply_wide(x.c[0], 0xD2511F53u, high0, low0);
    multiply_wide(x.c[2], 0xCD9E8D57u, high1, low1);
    x.c[0] = bit_xor(bit_xor(high1, x.c[1]), set1_int(key0));
    x.c[2] = bit_xor(bit_xor(high0, x.c[3]), set1_int(key1));
    x.c[1] = low1, x.c[3] = low0;
    key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
  }
  return x;
}

// Word -> a float strictly inside (0, 1), fine near 0: min(float(word) 2^-32 + 2^-33, 1 - 2^-24).
inline Vec uniform(IntVec word) {
  const Vec u = add(mul(to_float(word), set1(0x1p-32f)), set1(0x1p-33f));
  return min(u, set1(1.0f - 0x1p-24f));
}

// Standard Gumbel noise: -log(E) with E = -log(1 - u). Large values come from u near 0, where floats are
// finest.
inline Vec gumbel(NoiseKey key, IntVec id) {
  const IntVec low = set1_int(static_cast<std::uint32_t>(key.position));
  const IntVec high = set1_int(static_cast<std::uint32_t>(key.position >> 32));
  const PhiloxCounter random = philox({{low, high, id, set1_int(0)}}, key.seed);
  return sub(zero(), log(neg_log1m(uniform(random.c[0]))));
}

}  // namespace headrace::kernels::HEADRACE_ISA
