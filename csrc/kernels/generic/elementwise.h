// Row-wise kernels without a matrix: norms, rotary embedding, gated activations. Work is cut into rows, and
// each sum inside a row has one order.
#pragma once

#include "kernels/generic/kv_rows.h"
#include "kernels/generic/math.h"
#include "kernels/ops.h"
#include "kernels/threads.h"

namespace headrace::kernels::HEADRACE_ISA {

// Calls body(offset, live) for consecutive stretches of up to sixteen elements.
template <typename Body>
inline void for_vectors(std::int64_t width, const Body& body) {
  for (std::int64_t i = 0; i < width; i += 16) body(i, width - i < 16 ? width - i : 16);
}

// Runs body(row) for every row; a work item is as many rows as make waking a thread worthwhile.
template <typename Body>
inline void for_rows(std::int64_t rows, std::int64_t width, const Body& body) {
  constexpr std::int64_t worthwhile = 16384;  // elements
  const std::int64_t per_item = width >= worthwhile ? 1 : worthwhile / (width > 0 ? width : 1);
  parallel_for((rows + per_item - 1) / per_item, [&](std::int64_t item) {
    const std::int64_t end = (item + 1) * per_item < rows ? (item + 1) * per_item : rows;
    for (std::int64_t row = item * per_item; row < end; ++row) body(row);
  });
}

inline Vec load_live(const float* p, std::int64_t live) { return live == 16 ? load(p) : load_part(p, live); }
inline void store_live(float* p, Vec x, std::int64_t live) { live == 16 ? store(p, x) : store_part(p, x, live); }

// Sum of squares: vector i goes to accumulator i mod 4.
inline float sum_of_squares(const float* x, std::int64_t width) {
  Vec acc[4] = {zero(), zero(), zero(), zero()};
  for_vectors(width, [&](std::int64_t i, std::int64_t live) {
    const Vec v = load_live(x + i, live);
    Vec& into = acc[i / 16 % 4];
    into = fma(v, v, into);
  });
  return sum(add(add(acc[0], acc[1]), add(acc[2], acc[3])));
}

inline void norm_row(const NormArgs& args, std::int64_t row) {
  const float* x = args.x + row * args.width;
  if (args.residual) {
    const float* const residual = args.residual + row * args.width;
    float* const total = args.sum_out + row * args.width;
    for_vectors(args.width, [&](std::int64_t i, std::int64_t live) {
      store_live(total + i, add(load_live(x + i, live), load_live(residual + i, live)), live);
    });
    x = total;
  }
  const float mean = sum_of_squares(x, args.width) / static_cast<float>(args.width);
  const Vec inverse = set1(1.0f / __builtin_sqrtf(mean + args.eps));
  float* const y = args.y + row * args.width;
  for_vectors(args.width, [&](std::int64_t i, std::int64_t live) {
    const Vec scaled = mul(load_live(x + i, live), inverse);
    store_live(y + i, mul(scaled, load_live(args.weight + i, live)), live);
  });
}

inline void rms_norm(const NormArgs& args) {
  for_rows(args.rows, args.width, [&](std::int64_t row) { norm_row(args, row); });
}

// Pairs (i, i + half), vector-wise: a' = a cos - b sin, b' = b cos + a sin.
inline void rotate_halves(const float* x, const float* cos, const float* sin, float* y, std::int64_t half) {
  for_vectors(half, [&](std::int64_t i, std::int64_t live) {
    const Vec a = load_live(x + i, live), b = load_live(x + half + i, live);
    const Vec c = load_live(cos + i, live), s = load_live(sin + i, live);
    store_live(y + i, sub(mul(a, c), mul(b, s)), live);
    store_live(y + half + i, fma(b, c, mul(a, s)), live);
  });
}

inline void rotate_pairs(const float* x, const float* cos, const float* sin, float* y, std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    y[2 * i] = a * cos[i] - b * sin[i];
    y[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

inline void rope_row(const RopeArgs& args, std::int64_t token) {
  const std::int64_t half = args.rot / 2;
  const float* const cos = args.table + args.positions[token] * args.rot;
  for (std::int64_t head = 0; head < args.heads; ++head) {
    const std::int64_t at = (token * args.heads + head) * args.head_dim;
    (args.interleaved ? rotate_pairs : rotate_halves)(args.x + at, cos, cos + half, args.y + at, half);
    for (std::int64_t i = args.rot; i < args.head_dim; ++i) args.y[at + i] = args.x[at + i];
  }
}

inline void rope(const RopeArgs& args) {
  for_rows(args.tokens, args.heads * args.head_dim, [&](std::int64_t token) { rope_row(args, token); });
}

inline constexpr std::int64_t kMostHeadDim = 1024;  // the binding refuses larger heads

// One head: norm (when it has a weight), then rotation. The same arithmetic as norm_row and rope_row.
inline void finish_head(const HeadsArgs& args, const float* x, const float* norm, std::int64_t token, float* out) {
  float normed[kMostHeadDim];
  if (norm) {
    norm_row({x, nullptr, norm, normed, nullptr, 1, args.head_dim, args.eps}, 0);
    x = normed;
  }
  const RopeArgs rope{x, args.positions + token, args.table, out, 1, 1, args.head_dim, args.rot, args.interleaved};
  rope_row(rope, 0);
}

inline void heads_row(const HeadsArgs& args, std::int64_t token) {
  const std::int64_t d = args.head_dim, heads = args.q_heads + 2 * args.kv_heads;
  const float* const qkv = args.qkv + token * heads * d;
  for (std::int64_t h = 0; h < args.q_heads; ++h) {
    finish_head(args, qkv + h * d, args.q_norm, token, args.q + (token * args.q_heads + h) * d);
  }
  const std::int64_t slot = args.slots[token];
  if (slot < 0) return;
  const std::int64_t block = slot / args.block_size, offset = slot % args.block_size;
  for (std::int64_t h = 0; h < args.kv_heads; ++h) {
    const CacheRow to{block, h * args.block_size + offset};
    const float* const v = qkv + (args.q_heads + args.kv_heads + h) * d;
    float k[kMostHeadDim];
    finish_head(args, qkv + (args.q_heads + h) * d, args.k_norm, token, k);
    write_row(k, d, args.k_cache, to);
    write_row(v, d, args.v_cache, to);
  }
}

inline void qkv_to_cache(const HeadsArgs& args) {
  const std::int64_t width = (args.q_heads + 2 * args.kv_heads) * args.head_dim;
  for_rows(args.tokens, width, [&](std::int64_t token) { heads_row(args, token); });
}

inline void axpy(const AxpyArgs& args) {
  const Vec factor = set1(args.factor);
  for_rows(args.rows, args.width, [&](std::int64_t row) {
    const std::int64_t at = row * args.width;
    for_vectors(args.width, [&](std::int64_t i, std::int64_t live) {
      const Vec scaled = mul(load_live(args.x + at + i, live), factor);
      const Vec y = args.other ? add(scaled, load_live(args.other + at + i, live)) : scaled;
      store_live(args.out + at + i, y, live);
    });
  });
}

// 1 / (1 + exp(-x))
inline Vec sigmoid(Vec x) { return div(set1(1.0f), add(set1(1.0f), exp(sub(zero(), x)))); }

// x (1 + tanh(u)) / 2 equals x sigmoid(2u), without the cancellation for negative u; u = sqrt(2/pi) (x +
// 0.044715 x^3).
inline Vec gelu_tanh(Vec x) {
  const Vec cubic = fma(mul(mul(x, x), x), set1(0.044715f), x);
  return mul(x, sigmoid(mul(set1(2 * 0.7978845608f), cubic)));
}

inline void gate_row(const GateArgs& args, std::int64_t token) {
  const float* const gate = args.x + token * 2 * args.width;
  const float* const up = gate + args.width;
  float* const y = args.y + token * args.width;
  for_vectors(args.width, [&](std::int64_t i, std::int64_t live) {
    const Vec g = load_live(gate + i, live);
    const Vec opened = args.gate == Gate::kSilu ? mul(g, sigmoid(g)) : gelu_tanh(g);
    store_live(y + i, mul(opened, load_live(up + i, live)), live);
  });
}

inline void gate_mul(const GateArgs& args) {
  for_rows(args.tokens, 2 * args.width, [&](std::int64_t token) { gate_row(args, token); });
}

}  // namespace headrace::kernels::HEADRACE_ISA
