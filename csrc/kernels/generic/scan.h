// Passes over one row of logits: maximum, softmax pieces, candidates, noise. Each lane-wise sum has one
// order.
#pragma once

#include "kernels/generic/elementwise.h"
#include "kernels/generic/noise.h"

namespace headrace::kernels::HEADRACE_ISA {

inline RowTop row_top(const float* x, std::int64_t n) {
  Vec top = set1(-__builtin_inff());
  Mask broken = less(top, top);
  for_vectors(n, [&](std::int64_t i, std::int64_t live) {
    const Vec v = select(lanes_from_to(0, live), load_live(x + i, live), top);
    broken = either(broken, is_nan(v));
    top = max(v, top);
  });
  if (bits(broken)) return {__builtin_nanf(""), -1};
  const float value = max_of(top);
  const Vec wanted = set1(value);
  for (std::int64_t i = 0; i < n; i += 16) {
    const std::int64_t live = n - i < 16 ? n - i : 16;
    const std::uint32_t found = bits(both(equal(load_live(x + i, live), wanted), lanes_from_to(0, live)));
    if (found) return {value, static_cast<std::int32_t>(i + __builtin_ctz(found))};
  }
  return {value, -1};
}

// Sum of exp(x - top): vector i goes to accumulator i mod 4.
inline float sum_exp(const float* x, std::int64_t n, float top) {
  Vec acc[4] = {zero(), zero(), zero(), zero()};
  for_vectors(n, [&](std::int64_t i, std::int64_t live) {
    const Vec e = exp(sub(load_live(x + i, live), set1(top)));
    Vec& into = acc[i / 16 % 4];
    into = add(into, select(lanes_from_to(0, live), e, zero()));
  });
  return sum(add(add(acc[0], acc[1]), add(acc[2], acc[3])));
}

// z = (x - top) / temperature: logits relative to the best one.
inline void relative_logits(const float* x, std::int64_t n, float top, float temperature, float* z) {
  for_vectors(n, [&](std::int64_t i, std::int64_t live) {
    store_live(z + i, div(sub(load_live(x + i, live), set1(top)), set1(temperature)), live);
  });
}

// maxima[b] = maximum of x[b * block : (b + 1) * block]; NaN counts as nothing.
inline void block_maxima(const float* x, std::int64_t n, std::int64_t block, float* maxima) {
  for (std::int64_t b = 0; b * block < n; ++b) {
    const std::int64_t left = n - b * block, width = left < block ? left : block;
    Vec top = set1(-__builtin_inff());
    for_vectors(width, [&](std::int64_t i, std::int64_t live) {
      const Vec v = select(lanes_from_to(0, live), load_live(x + b * block + i, live), top);
      top = max(v, top);  // top when v is NaN
    });
    maxima[b] = max_of(top);
  }
}

// Writes the ids with x >= limit, ascending, and returns how many; `ids` must have room for n.
inline std::int64_t collect_at_least(const float* x, std::int64_t n, float limit, std::int32_t* ids) {
  std::int64_t count = 0;
  for_vectors(n, [&](std::int64_t i, std::int64_t live) {
    const Vec v = load_live(x + i, live);
    const Mask enough = either(less(set1(limit), v), equal(set1(limit), v));
    for (std::uint32_t left = bits(both(enough, lanes_from_to(0, live))); left; left &= left - 1) {
      ids[count++] = static_cast<std::int32_t>(i + __builtin_ctz(left));
    }
  });
  return count;
}

// How many ids come before `id` in the order (value descending, id ascending).
inline std::int64_t count_ahead(const float* x, std::int64_t n, float value, std::int32_t id) {
  std::int64_t count = 0;
  for_vectors(n, [&](std::int64_t i, std::int64_t live) {
    const Vec v = load_live(x + i, live);
    const Mask tied = both(equal(v, set1(value)), lanes_from_to(0, id <= i ? 0 : id - i < 16 ? id - i : 16));
    const Mask ahead = both(either(less(set1(value), v), tied), lanes_from_to(0, live));
    count += __builtin_popcount(bits(ahead));
  });
  return count;
}

// Index of the largest z[i] + noise(key, id), where id is ids[i], or i without ids; ties go to the lower id.
// Returns the id. n >= 1; z must hold no NaN and one finite value.
inline std::int32_t draw(const float* z, const std::int32_t* ids, std::int64_t n, NoiseKey key) {
  Vec best = set1(-__builtin_inff());
  IntVec winner = set1_int(0x7fffffff);
  for_vectors(n, [&](std::int64_t i, std::int64_t live) {
    const IntVec id = ids ? load_int(ids + i, live) : add(set1_int(static_cast<std::uint32_t>(i)), lane_numbers());
    const Vec score = add(load_live(z + i, live), gumbel(key, id));
    const Mask tied = both(equal(score, best), less_signed(id, winner));
    const Mask better = both(either(less(best, score), tied), lanes_from_to(0, live));
    best = select(better, score, best);
    winner = select(better, id, winner);
  });
  float scores[16];
  std::int32_t winners[16];
  store(scores, best), store_int(winners, winner);
  int lane = 0;
  for (int i = 1; i < 16; ++i) {
    const bool tied = scores[i] == scores[lane] && winners[i] < winners[lane];
    if (scores[i] > scores[lane] || tied) lane = i;
  }
  return winners[lane];
}

}  // namespace headrace::kernels::HEADRACE_ISA
