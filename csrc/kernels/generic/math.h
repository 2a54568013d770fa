// exp and log on vectors, accurate to about two units in the last place; each lane depends on itself alone.
#pragma once

#include "kernels/simd/simd.h"

namespace headrace::kernels::HEADRACE_ISA {

// log(2) in two parts; the first has few bits, so its product with a small integer is exact.
inline constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;

// exp(x) = 2^n exp(r), |r| <= log(2) / 2, by the Taylor series to r^7. Results under 2^-126 become 0; x
// beyond 127.5 log(2) gives infinity (a little early); NaN stays NaN.
inline Vec exp(Vec x) {
  const Vec low = set1(-87.3365f), high = set1(88.3762f);
  const Vec inside = min(high, max(low, x));
  const Vec n = round(mul(inside, set1(1.44269504f)));
  const Vec r = fma(n, set1(-kLn2Low), fma(n, set1(-kLn2High), inside));
  Vec y = set1(1.0f / 5040);
  y = fma(y, r, set1(1.0f / 720));
  y = fma(y, r, set1(1.0f / 120));
  y = fma(y, r, set1(1.0f / 24));
  y = fma(y, r, set1(1.0f / 6));
  y = fma(y, r, set1(0.5f));
  y = fma(y, r, set1(1.0f));
  y = fma(y, r, set1(1.0f));
  y = mul(y, pow2(n));
  y = select(less(high, x), set1(__builtin_inff()), y);
  return select(less(x, low), zero(), y);
}

// Natural logarithm of positive normal numbers: with s = (m - 1) / (m + 1), log m = 2 (s + s^3/3 + s^5/5 +
// ...).
inline Vec log(Vec x) {
  Vec m, e;
  split(x, m, e);
  const Vec s = div(sub(m, set1(1.0f)), add(m, set1(1.0f))), z = mul(s, s);
  Vec tail = set1(2.0f / 11);
  tail = fma(tail, z, set1(2.0f / 9));
  tail = fma(tail, z, set1(2.0f / 7));
  tail = fma(tail, z, set1(2.0f / 5));
  tail = fma(tail, z, set1(2.0f / 3));
  const Vec small = fma(mul(tail, z), s, mul(e, set1(kLn2Low)));
  return add(fma(e, set1(kLn2High), add(s, s)), small);
}

// -log(1 - u) for u in [2^-33, 1 - 2^-24]: log of the rounded 1 - u, plus what the rounding lost.
inline Vec neg_log1m(Vec u) {
  const Vec w = sub(set1(1.0f), u);
  const Vec lost = div(add(sub(w, set1(1.0f)), u), w);
  return sub(lost, log(w));
}

}  // namespace headrace::kernels::HEADRACE_ISA
