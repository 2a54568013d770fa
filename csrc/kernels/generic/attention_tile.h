// One tile of keys and values against the queries of a chunk: scores, weights, weighted values, and their place in
// the running softmax. Everything a query gets is worked out in its own lane.
#pragma once

#include "kernels/generic/attention_state.h"

namespace headrace::kernels::HEADRACE_ISA {

// Rows of the cache that hold consecutive positions of one head.
class RowWalk {
 public:
  RowWalk(const AttentionArgs& args, const AttentionChunk& chunk, std::int64_t kv_head, std::int64_t position)
      : size_(args.block_size),
        block_(args.block_table + chunk.slice * args.max_blocks + position / args.block_size),
        first_(kv_head * args.block_size),
        offset_(position % args.block_size) {}

  // The next rows that lie side by side, at most `most`: how many, and the first of them.
  std::int64_t take(std::int64_t most, CacheRow& first) {
    if (offset_ == size_) ++block_, offset_ = 0;
    first = {*block_, first_ + offset_};
    const std::int64_t count = most < size_ - offset_ ? most : size_ - offset_;
    offset_ += count;
    return count;
  }

 private:
  std::int64_t size_ = 0;
  const std::int32_t* block_ = nullptr;
  std::int64_t first_ = 0, offset_ = 0;
};

// Where the rows of a tile lie; null where none is wanted.
struct TileRows {
  const std::uint8_t *key[kTile] = {}, *value[kTile] = {};

  TileRows(const AttentionArgs& args, RowWalk walk, Range used) {
    const std::int64_t bytes = row_bytes(args.k_cache.format, args.head_dim);
    for (std::int64_t j = used.low; j < used.high;) {
      CacheRow first{};
      const std::int64_t end = j + walk.take(used.high - j, first);
      const std::uint8_t* k = args.k_cache.row(first, args.head_dim);
      const std::uint8_t* v = args.v_cache.row(first, args.head_dim);
      for (; j < end; ++j, k += bytes, v += bytes) key[j] = k, value[j] = v;
    }
  }
};

// Asks the memory for rows that will be wanted soon, one at a time while others are worked on: a processor keeps only
// so many lines on their way, and stands still when asked for more. Goes on from the chunk to what comes next.
class RowsAhead {
 public:
  RowsAhead(const AttentionArgs& args, const KeyRange& now, const KeyRange& next)
      : args_(&args), bytes_(row_bytes(args.k_cache.format, args.head_dim)), keys_(now), next_(next) {
    keys_.first += kDistance;
  }

  void step() {
    if (run_ == 0 && !turn_to_block()) return;
    --run_;
    for (std::int64_t i = 0; i + 32 < bytes_; i += 64) {  // few bytes more lie in the line of the next row
      __builtin_prefetch(key_ + i, 0, 2);
      __builtin_prefetch(value_ + i, 0, 2);
    }
    key_ += bytes_, value_ += bytes_;
  }

 private:
  static constexpr std::int64_t kDistance = 128;  // positions: some microseconds of work

  // Goes to the next rows that lie side by side; false when there are none.
  bool turn_to_block() {
    if (keys_.first >= keys_.end) {
      if (next_.first >= next_.end) return false;
      keys_ = next_, next_ = {};
    }
    const std::int64_t size = args_->block_size, at = keys_.first, offset = at % size;
    run_ = keys_.end - at < size - offset ? keys_.end - at : size - offset;
    keys_.first += run_;
    const std::int64_t block = args_->block_table[keys_.chunk->slice * args_->max_blocks + at / size];
    const CacheRow row{block, keys_.kv_head * size + offset};
    key_ = args_->k_cache.row(row, args_->head_dim), value_ = args_->v_cache.row(row, args_->head_dim);
    return true;
  }

  const AttentionArgs* args_;
  std::int64_t bytes_;
  KeyRange keys_, next_;  // what is still to be asked for
  std::int64_t run_ = 0;
  const std::uint8_t *key_ = nullptr, *value_ = nullptr;
};

template <class D>
class TileAttention {
 public:
  TileAttention(const ChunkShape& shape, const ChunkScratch& scratch, RowsAhead ahead)
      : shape_(shape), scratch_(scratch), ahead_(ahead) {}

  // Fetches the tile that starts at position `at`. Positions outside `used` become zeros.
  void fetch(const AttentionArgs& args, const AttentionChunk& chunk, std::int64_t at, Range used) {
    at_ = at;
    const TileRows rows(args, RowWalk(args, chunk, shape_.kv_head, at + used.low), used);
    if constexpr (D::kCell == 2) {
      const std::int64_t most = 2147483647 / (kTile * largest_code(args.v_cache.format, shape_.head_dim));
      largest_weight_ = static_cast<float>(most < 32767 ? most : 32767);
      args.k_cache.format == KvFormat::kInt16 ? fetch_codes<std::int16_t>(args.k_cache.format, rows)
                                              : fetch_codes<std::int8_t>(args.k_cache.format, rows);
    } else {
      fetch_floats(args.k_cache.format, rows);
    }
  }

  // What the largest weight of a query becomes; products with values of 32 positions must fit an int32 sum.
  float largest_weight() const { return largest_weight_; }

  // Whether some value is not finite: then not even a weight of 0 keeps it out of a sum.
  bool wild() const { return wild_; }

  // Vectors [v, v + P) of queries against the tile.
  template <int P>
  void attend(std::int64_t v, PartState part) {
    const std::int64_t end = v * 16 + P * 16 < shape_.queries ? v * 16 + P * 16 : shape_.queries;
    const Range first = shape_.visible(v * 16 / shape_.group, at_),
                last = shape_.visible((end - 1) / shape_.group, at_);
    if (last.high <= 0 || first.low >= kTile) return;
    first.high == kTile&& last.low == 0 ? attend_lanes<P, false>(v, part) : attend_lanes<P, true>(v, part);
  }

 private:
  using Element = typename D::Element;

  Element* elements(float* memory) const { return reinterpret_cast<Element*>(memory); }
  float* score(std::int64_t j, int p, int vectors) const { return scratch_.scores + (j * vectors + p) * 16; }

  void fetch_floats(KvFormat format, const TileRows& rows) {
    Vec probe = zero();
    for (std::int64_t j = 0; j < kTile; ++j) {
      float *const key = scratch_.keys + j * shape_.depth, *const value = scratch_.values + j * shape_.depth;
      if (!rows.key[j]) {
        for (std::int64_t d = 0; d < shape_.depth; d += 16) store(key + d, zero()), store(value + d, zero());
        continue;
      }
      ahead_.step();
      read_row(rows.key[j], format, shape_.head_dim, key);
      read_row(rows.value[j], format, shape_.head_dim, value);
      for (std::int64_t d = 0; d < shape_.depth; d += 16) probe = fma(load(value + d), zero(), probe);
    }
    wild_ = sum(probe) != 0;  // infinity or NaN times 0 is NaN
  }

  // Values of two positions lie side by side, as one step of a product.
  template <typename Code>
  void fetch_codes(KvFormat format, const TileRows& rows) {
    const std::int64_t depth = shape_.depth, head_dim = shape_.head_dim;
    const std::int64_t scale_at = head_dim * element_bytes(format);
    const ChunkScratch scratch = scratch_;
    RowsAhead ahead = ahead_;  // in registers: for all the compiler knows, a store may change a member
    for (std::int64_t j = 0; j < kTile; ++j) {
      std::int16_t* const key = elements(scratch.keys) + j * depth;
      if (!rows.key[j]) {
        for (std::int64_t d = 0; d < depth; d += 16) store_codes(key + d, set1_int(0));
        scratch.key_scale[j] = scratch.value_scale[j] = 0;
        continue;
      }
      ahead.step();
      read_codes(reinterpret_cast<const Code*>(rows.key[j]), head_dim, key);
      __builtin_memcpy(scratch.key_scale + j, rows.key[j] + scale_at, sizeof(float));
      __builtin_memcpy(scratch.value_scale + j, rows.value[j] + scale_at, sizeof(float));
    }
    ahead_ = ahead;
    for (std::int64_t j = 0; j < kTile; j += 2) {
      const auto *const even = reinterpret_cast<const Code*>(rows.value[j]), *const odd = reinterpret_cast<const Code*>(
                                                                                 rows.value[j + 1]);
      read_pairs(even, odd, head_dim, elements(scratch.values) + j * depth);
    }
  }

  template <int P, bool kEdge>
  void attend_lanes(std::int64_t v, PartState part) {
    Vec here[P], shrink[P], grow[P];
    Mask seen[P];
    score_tile<P, kEdge>(v, here);
    repeat<P>([&](auto index) {
      constexpr int p = index.value;
      const Vec total = weigh<P>(p, here[p]);
      Vec factor = set1(1.0f);
      if constexpr (D::kCell == 2) factor = round_weights<P, kEdge>(v, p);
      seen[p] = shape_.lanes(shape_.seeing(at_, at_ + kTile - 1), v + p);
      const Rescale rescale = fold(part, v + p, here[p], total, kEdge ? seen[p] : lanes_from_to(0, 16));
      shrink[p] = rescale.shrink, grow[p] = mul(factor, rescale.share);
    });
    if (kEdge && wild_) return add_seen_values<P>(v, part, shrink, grow, seen);
    add_values<P, kEdge>(v, part, shrink, grow, seen);
  }

  static Vec lanes_at(const float* p, std::int64_t vector) { return load(p + vector * 16); }

  // Scores of all positions, minus infinity where a lane does not see them, and their maximum.
  template <int P, bool kEdge>
  void score_tile(std::int64_t v, Vec (&here)[P]) {
    constexpr int M = lane_rows(P);
    const std::int64_t steps = shape_.depth / D::kCell;
    const Vec never = set1(-__builtin_inff());
    const Lanes<D> queries{elements(scratch_.q) + v * steps * 16 * D::kCell, steps * 16 * D::kCell, 16 * D::kCell};
    Vec scale[P];
    repeat<P>([&](auto p) { here[p.value] = never, scale[p.value] = lanes_at(scratch_.q_scale, v + p.value); });
    for (std::int64_t j = 0; j < kTile; j += M) {
      const Spread<D> keys{elements(scratch_.keys) + j * shape_.depth, shape_.depth, D::kCell};
      multiply_lanes<D, M, P>(keys, queries, steps, [&](int m, int p, Vec dot) __attribute__((always_inline)) {
        Vec s = mul(dot, D::kCell == 2 ? mul(scale[p], set1(scratch_.key_scale[j + m])) : scale[p]);
        if constexpr (kEdge) s = select(lanes_seeing(j + m, v + p), s, never);
        store(score(j + m, p, P), s);
        here[p] = max(here[p], s);
      });
    }
  }

  Mask lanes_seeing(std::int64_t j, std::int64_t vector) const {
    return shape_.lanes(shape_.seeing(at_ + j, at_ + j), vector);
  }

  // Scores become weights against the tile's own maximum; returns their sum. Positions fold 16 apart, then 8, 4, 2, 1.
  template <int P>
  Vec weigh(int p, Vec here) {
    Vec folded[8];
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      Vec w[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        w[i] = exp(sub(lanes_at(score(j + 8 * i, p, P), 0), here));
        store(score(j + 8 * i, p, P), w[i]);
      }
      folded[j] = add(add(w[0], w[2]), add(w[1], w[3]));
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) folded[j] = add(folded[j], folded[j + 4]);
    return add(add(folded[0], folded[2]), add(folded[1], folded[3]));
  }

  // Weights times the scales of their values become int16, in pairs, relative to the largest of them; returns what a
  // sum of them is to be multiplied by.
  template <int P, bool kEdge>
  Vec round_weights(std::int64_t v, int p) {
    Vec most = zero();
    for (std::int64_t j = 0; j < kTile; ++j) {
      Vec w = mul(lanes_at(score(j, p, P), 0), set1(scratch_.value_scale[j]));
      if constexpr (kEdge) w = select(lanes_seeing(j, v + p), w, zero());
      store(score(j, p, P), w);
      most = max(most, w);
    }
    const Vec factor = select(equal(most, zero()), zero(), div(set1(largest_weight_), most));
    for (std::int64_t t = 0; t < kTile / 2; ++t) {
      const Vec even = lanes_at(score(2 * t, p, P), 0), odd = lanes_at(score(2 * t + 1, p, P), 0);
      store_pairs(elements(scratch_.weights) + (t * P + p) * 32,
                  pair_up(to_int(mul(even, factor)), to_int(mul(odd, factor))));
    }
    return div(most, set1(largest_weight_));
  }

  // acc = acc * shrink + (weights @ values) * grow.
  template <int P, bool kEdge>
  void add_values(std::int64_t v, PartState part, const Vec (&shrink)[P], const Vec (&grow)[P], const Mask (&seen)[P]) {
    constexpr int M = lane_rows(P);
    const std::int64_t cells = 16 * D::kCell;
    const Lanes<D> weights{elements(D::kCell == 2 ? scratch_.weights : scratch_.scores), cells, P * cells};
    for (std::int64_t d = 0; d < shape_.depth; d += M) {
      const Spread<D> values{elements(scratch_.values) + d * D::kCell, D::kCell, shape_.depth * D::kCell};
      multiply_lanes<D, M, P>(values, weights, kTile / D::kCell,
                              [&](int m, int p, Vec dot) __attribute__((always_inline)) {
                                float* const at = part.acc + ((v + p) * shape_.depth + d + m) * 16;
                                const Vec old = lanes_at(at, 0), sum = fma(old, shrink[p], mul(dot, grow[p]));
                                store(at, kEdge ? select(seen[p], sum, old) : sum);
                              });
    }
  }

  // The same in floats, position by position, leaving out what a lane does not see.
  template <int P>
  void add_seen_values(std::int64_t v, PartState part, const Vec (&shrink)[P], const Vec (&grow)[P],
                       const Mask (&seen)[P]) {
    for (int p = 0; p < P; ++p) {
      for (std::int64_t d = 0; d < shape_.depth; ++d) {
        Vec dot = zero();
        for (std::int64_t j = 0; j < kTile; ++j) {
          const Vec value = set1(scratch_.values[j * shape_.depth + d]);
          dot = select(lanes_seeing(j, v + p), fma(value, lanes_at(score(j, p, P), 0), dot), dot);
        }
        float* const at = part.acc + ((v + p) * shape_.depth + d) * 16;
        const Vec old = lanes_at(at, 0);
        store(at, select(seen[p], fma(old, shrink[p], mul(dot, grow[p])), old));
      }
    }
  }

  const ChunkShape& shape_;
  const ChunkScratch& scratch_;
  RowsAhead ahead_;
  std::int64_t at_ = 0;
  float largest_weight_ = 0;
  bool wild_ = false;
};

}  // namespace headrace::kernels::HEADRACE_ISA
