// A tile against a handful of queries, as when decoding: positions or values lie in the lanes, so that few queries
// leave none of them empty. Every score, weight and output is the same chain, fold or exact integer as in
// attention_tile.h, and so has the same bits.
#pragma once

#include "kernels/generic/attention_tile.h"

namespace headrace::kernels::HEADRACE_ISA {

template <class D>
class FewQueries {
 public:
  FewQueries(const ChunkShape& shape, const ChunkScratch& scratch) : shape_(shape), scratch_(scratch) {}

  void clear() const {
    for (std::int64_t i = 0; i < shape_.queries * shape_.depth; i += 16) store(scratch_.few_acc + i, zero());
  }

  // The tile that was fetched last, against all queries of the chunk. Weighted values gather in few_acc until
  // hand_over().
  void attend(std::int64_t at, const TileAttention<D>& tile, PartState part) const {
    transpose_keys();
    score_tile();
    float here[16] = {}, total[16] = {}, grow[16] = {}, shrink[16], share[16];
    for (std::int64_t i = 0; i < shape_.queries; ++i) {
      here[i] = weigh(i, shape_.visible(i / shape_.group, at), tile.largest_weight(), total[i], grow[i]);
    }
    const Mask seen = shape_.lanes(shape_.seeing(at, at + kTile - 1), 0);
    const Rescale rescale = fold(part, 0, load(here), load(total), seen);
    store(shrink, rescale.shrink), store(share, mul(load(grow), rescale.share));
    for (std::int64_t i = 0; i < shape_.queries; ++i) {
      const Range range = shape_.visible(i / shape_.group, at);
      if (range.high <= 0 || range.low >= kTile) shrink[i] = 1, share[i] = 0, clear_weights(i);
    }
    tile.wild() ? add_seen_values(at, shrink, share) : add_values(shrink, share);
  }

  // Moves what was gathered to the lanes of the part.
  void hand_over(PartState part) const {
    for (std::int64_t i = 0; i < shape_.queries; ++i) {
      for (std::int64_t d = 0; d < shape_.depth; ++d) part.acc[d * 16 + i] = scratch_.few_acc[i * shape_.depth + d];
    }
  }

 private:
  using Element = typename D::Element;
  static constexpr std::int64_t kSteps = kTile / D::kCell;  // of a product with the values

  Element* elements(float* memory) const { return reinterpret_cast<Element*>(memory); }
  std::int64_t steps() const { return shape_.depth / D::kCell; }

  // Sixteen positions at a time into lanes: (2, steps, 16) cells.
  void transpose_keys() const {
    const std::int64_t stride = steps();
    for (std::int64_t half = 0; half < 2; ++half) {
      for (std::int64_t k = 0; k < stride; k += 16) {
        Vec r[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) r[i] = load_some(scratch_.keys + (half * 16 + i) * stride + k, stride - k);
        transpose(r);
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
          if (k + i < stride) store(scratch_.few_keys + (half * stride + k + i) * 16, r[i]);
        }
      }
    }
  }

  void score_tile() const {
    constexpr int P = kLaneVectors < 2 ? 1 : 2;
    const std::int64_t cells = 16 * D::kCell;
    for_row_tiles<4>(shape_.queries, [&](std::int64_t query, auto count) {
      constexpr int M = decltype(count)::value;
      const Spread<D> q{elements(scratch_.few_q + query * shape_.depth), shape_.depth * D::kCell, D::kCell};
      for (std::int64_t half = 0; half < 2; half += P) {
        const Lanes<D> keys{elements(scratch_.few_keys) + half * steps() * cells, steps() * cells, cells};
        multiply_lanes<D, M, P>(q, keys, steps(), [&](int m, int p, Vec dot) __attribute__((always_inline)) {
          Vec factor = set1(scratch_.q_scale[query + m]);
          if constexpr (D::kCell == 2) factor = mul(factor, load(scratch_.key_scale + (half + p) * 16));
          store(scratch_.scores + (query + m) * kTile + (half + p) * 16, mul(dot, factor));
        });
      }
    });
  }

  // Scores of one query become weights, rounded where they are to be; returns their maximum.
  float weigh(std::int64_t query, Range seen, float largest_weight, float& total, float& grow) const {
    float* const scores = scratch_.scores + query * kTile;
    const Vec never = set1(-__builtin_inff());
    const Mask low = lanes(seen, 0), high = lanes(seen, 16);
    const Vec s0 = select(low, load(scores), never), s1 = select(high, load(scores + 16), never);
    const float here = max_of(max(s0, s1));
    Vec w0 = exp(sub(s0, set1(here))), w1 = exp(sub(s1, set1(here)));
    total = sum(add(w0, w1)), grow = 1;
    if constexpr (D::kCell == 2) {
      w0 = select(low, mul(w0, load(scratch_.value_scale)), zero());
      w1 = select(high, mul(w1, load(scratch_.value_scale + 16)), zero());
      const float most = max_of(max(max(w0, w1), zero()));
      const Vec factor = set1(most == 0 ? 0 : largest_weight / most);
      std::int16_t* const codes = elements(scratch_.weights) + query * kTile;
      store_codes(codes, to_int(mul(w0, factor))), store_codes(codes + 16, to_int(mul(w1, factor)));
      grow = most / largest_weight;
    } else {
      store(scores, w0), store(scores + 16, w1);
    }
    return here;
  }

  void clear_weights(std::int64_t query) const {
    Element* const weights = elements(D::kCell == 2 ? scratch_.weights : scratch_.scores) + query * kTile;
    for (std::int64_t j = 0; j < kTile; ++j) weights[j] = 0;
  }

  static Mask lanes(Range seen, std::int64_t from) {
    const auto clip = [](std::int64_t lane) { return lane < 0 ? 0 : lane > 16 ? 16 : lane; };
    return lanes_from_to(clip(seen.low - from), clip(seen.high - from));
  }

  template <int P>
  void add_vectors(std::int64_t d, const float* shrink, const float* share) const {
    const std::int64_t depth = shape_.depth, cell = D::kCell;
    for_row_tiles<4>(shape_.queries, [&](std::int64_t query, auto count) {
      constexpr int M = decltype(count)::value;
      const auto* const memory = elements(D::kCell == 2 ? scratch_.weights : scratch_.scores);
      const Spread<D> weights{memory + query * kTile, kTile, cell};
      const Lanes<D> values{elements(scratch_.values) + d * cell, 16 * cell, depth * cell};
      multiply_lanes<D, M, P>(weights, values, kSteps, [&](int m, int p, Vec dot) __attribute__((always_inline)) {
        float* const at = scratch_.few_acc + (query + m) * depth + d + p * 16;
        store(at, fma(load(at), set1(shrink[query + m]), mul(dot, set1(share[query + m]))));
      });
    });
  }

  void add_values(const float* shrink, const float* share) const {
    constexpr int wide = kLaneVectors < 2 ? 1 : 4;
    std::int64_t d = 0;
    for (; d + wide * 16 <= shape_.depth; d += wide * 16) add_vectors<wide>(d, shrink, share);
    for (; d < shape_.depth; d += 16) add_vectors<1>(d, shrink, share);
  }

  // The same in floats, leaving out what a query does not see.
  void add_seen_values(std::int64_t at, const float* shrink, const float* share) const {
    for (std::int64_t i = 0; i < shape_.queries; ++i) {
      const Range seen = shape_.visible(i / shape_.group, at);
      for (std::int64_t d = 0; d < shape_.depth; d += 16) {
        Vec dot = zero();
        for (std::int64_t j = seen.low; j < seen.high; ++j) {
          dot = fma(set1(scratch_.scores[i * kTile + j]), load(scratch_.values + j * shape_.depth + d), dot);
        }
        float* const to = scratch_.few_acc + i * shape_.depth + d;
        store(to, fma(load(to), set1(shrink[i]), mul(dot, set1(share[i]))));
      }
    }
  }

  const ChunkShape& shape_;
  const ChunkScratch& scratch_;
};

}  // namespace headrace::kernels::HEADRACE_ISA
