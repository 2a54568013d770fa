// One row's attention to keys that are its values, with a sink. Every score is a sum of its own in a fixed order, and
// every value one chain over the row's keys: how many heads and keys are worked on side by side changes no bit.
#pragma once

#include "kernels/generic/math.h"
#include "kernels/generic/tile.h"
#include "kernels/records.h"

namespace headrace::kernels::HEADRACE_ISA {

inline constexpr int kLatentHeads = 4, kKeysAtOnce = 2;

// Dot products of H heads from `head` on with N keys from `key` on.
template <int H, int N>
inline void latent_dots(const LatentRow& row, std::int64_t head, std::int64_t key, std::int64_t stride, float scale) {
  Vec acc[H][N];
  for (auto& of_head : acc) {
    for (Vec& one : of_head) one = zero();
  }
  for (std::int64_t d = 0; d < row.depth; d += 16) {
    Vec k[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) k[n] = load(row.keys[key + n] + d);
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h) {
      const Vec q = load(row.q + (head + h) * row.depth + d);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) acc[h][n] = fma(q, k[n], acc[h][n]);
    }
  }
  for (int h = 0; h < H; ++h) {
    for (int n = 0; n < N; ++n) row.weights[(head + h) * stride + key + n] = sum(acc[h][n]) * scale;
  }
}

// Scores of one head become weights, in place; returns what their sum and the sink's divide by.
inline float latent_softmax(float* scores, std::int64_t count, float sink) {
  Vec top = set1(sink);
  std::int64_t n = 0;
  for (; n + 16 <= count; n += 16) top = max(top, load(scores + n));
  const float in_vectors = max_of(top);
  float largest = in_vectors;
  for (std::int64_t i = n; i < count; ++i) largest = scores[i] > largest ? scores[i] : largest;
  const Vec shift = set1(largest);
  for (n = 0; n < count; n += 16) {
    const std::int64_t here = count - n < 16 ? count - n : 16;
    store_part(scores + n, exp(sub(load_part(scores + n, here), shift)), here);
  }
  Vec total = zero();
  for (n = 0; n < count; n += 16) total = add(total, load_part(scores + n, count - n < 16 ? count - n : 16));
  float own[16];
  store(own, exp(sub(set1(sink), shift)));
  return sum(total) + own[0];
}

// Values of H heads, P vectors of columns from `column` on.
template <int H, int P>
inline void latent_values(const LatentRow& row, std::int64_t head, std::int64_t column, std::int64_t stride,
                          const float* totals) {
  Tile<H, P> tile;
  tile.clear();
  for (std::int64_t n = 0; n < row.count; ++n) {
    const float* const key = row.keys[n] + column;
    Vec k[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) k[p] = load(key + p * 16);
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h) {
      const Vec weight = set1(row.weights[(head + h) * stride + n]);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) tile.acc[h][p] = fma(weight, k[p], tile.acc[h][p]);
    }
  }
  tile.each([&](int h, int p, Vec acc) {
    store(row.out + (head + h) * row.depth + column + p * 16, div(acc, set1(totals[h])));
  });
}

// Scores, weights and values of heads [head, head + H). The depth is whole vectors, an even number of them.
template <int H>
inline void attend_heads(const LatentRow& row, std::int64_t head, std::int64_t stride, float scale) {
  std::int64_t key = 0;
  for (; key + kKeysAtOnce <= row.count; key += kKeysAtOnce) latent_dots<H, kKeysAtOnce>(row, head, key, stride, scale);
  for (; key < row.count; ++key) latent_dots<H, 1>(row, head, key, stride, scale);
  float totals[H];
  for (int h = 0; h < H; ++h) {
    totals[h] = latent_softmax(row.weights + (head + h) * stride, row.count, row.sink[head + h]);
  }
  constexpr int P = tile_panels(H);
  std::int64_t column = 0;
  for (; column + P * 16 <= row.depth; column += P * 16) latent_values<H, P>(row, head, column, stride, totals);
  for (; column < row.depth; column += 16) latent_values<H, 1>(row, head, column, stride, totals);
}

inline void attend_latent(const LatentRow& row) {
  const std::int64_t stride = (row.count + 15) / 16 * 16;
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(row.depth));
  for_row_tiles<kLatentHeads>(row.heads, [&](std::int64_t head, auto count) {
    attend_heads<decltype(count)::value>(row, head, stride, scale);
  });
}

}  // namespace headrace::kernels::HEADRACE_ISA
