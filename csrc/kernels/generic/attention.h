// Attention of a chunk of query rows to one KV head, by online softmax over tiles of 32 absolute positions.
//
// Why the bits never change: tiles and partitions are cut at absolute positions, so chunking, caching, the
// block size and the block table cannot move them; within a tile every score and every output is one chain in
// order of position, or an exact integer; what a row may not see is set to minus infinity before the maximum,
// and so contributes exactly nothing. Each partition (512 positions) starts afresh and partitions are merged in
// order, whether one thread walks through them or many share them.
//
// Reads only positions that some row of the chunk sees: anything else may be unwritten, foreign or
// unallocated.
#pragma once

#include "kernels/generic/attention_few.h"

namespace headrace::kernels::HEADRACE_ISA {

template <class D>
class ChunkAttention {
 public:
  ChunkAttention(const AttentionArgs& args, const KeyRange& keys, const KeyRange& next, float* scratch)
      : args_(args),
        chunk_(*keys.chunk),
        shape_(args, chunk_, keys.kv_head),
        scratch_(shape_, scratch),
        tile_(shape_, scratch_, RowsAhead(args, keys, next)),
        few_(shape_, scratch_) {}

  // The chunk's queries, transposed: lane i % 16 of vector i / 16 is query i. Lanes beyond the queries are zeros.
  void load_queries() {
    for (std::int64_t v = 0; v < shape_.vectors; ++v) load_vector(v);
  }

  // Attends to one partition of the chunk's context; `part` starts empty.
  void attend(std::int64_t partition, PartState part) {
    part.clear(shape_.vectors, shape_.depth);
    if (few()) few_.clear();
    attend_tiles(partition, part);
    if (few()) few_.hand_over(part);
  }

  // All of a context that lies in one partition, for a handful of queries: merged with nothing, a part stays what it
  // is, so its rows are written as they lie.
  void attend_only(std::int64_t partition) {
    const PartState part = this->part();
    part.clear(1, 0);
    few_.clear();
    attend_tiles(partition, part);
    for (std::int64_t i = 0; i < shape_.queries; ++i) {
      const Vec total = set1(part.total[i]);
      for (std::int64_t d = 0; d < shape_.depth; d += 16) {
        const Vec out = add(div(load(scratch_.few_acc + i * shape_.depth + d), total), zero());
        store_some(args_.out + query_offset(i) + d, out, args_.head_dim - d);
      }
    }
  }

  bool few() const { return shape_.queries <= kFewQueries; }

  PartState part() const { return {scratch_.part, shape_.vectors}; }
  PartState empty_merged() const {
    const PartState merged(scratch_.merged, shape_.vectors);
    merged.clear(shape_.vectors, shape_.depth);
    return merged;
  }

  // out = acc / total for every query of the chunk. Adding 0 turns -0 into 0: which of the two a sum of nothing is
  // depends on what else was in the chunk.
  void write_out(PartState merged) const {
    for (std::int64_t v = 0; v < shape_.vectors; ++v) {
      const Vec total = load(merged.total + v * 16);
      for (std::int64_t d = 0; d < shape_.depth; d += 16) {
        Vec r[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) r[i] = add(div(load(merged.acc + (v * shape_.depth + d + i) * 16), total), zero());
        transpose(r);
        for (std::int64_t i = 0; i < 16 && v * 16 + i < shape_.queries; ++i) {
          store_some(args_.out + query_offset(v * 16 + i) + d, r[i], args_.head_dim - d);
        }
      }
    }
  }

  const ChunkShape& shape() const { return shape_; }

 private:
  void attend_tiles(std::int64_t partition, PartState part) {
    const std::int64_t begin = partition * kPartition, end = begin + kPartition;
    const std::int64_t first = chunk_.first_seen(args_.window), last = chunk_.end_position();
    const std::int64_t low = (first > begin ? first : begin) / kTile * kTile, high = last < end ? last : end;
    for (std::int64_t at = low; at < high; at += kTile) attend_tile(at, part);
  }

  std::int64_t query_offset(std::int64_t i) const {
    const std::int64_t token = chunk_.first_token + i / shape_.group;
    return (token * args_.q_heads + shape_.kv_head * shape_.group + i % shape_.group) * args_.head_dim;
  }

  void load_vector(std::int64_t v) {
    Vec scale = set1(args_.scale);
    float scales[16] = {};
    for (std::int64_t i = 0; i < (few() ? shape_.queries : 16); ++i) {
      const std::int64_t query = v * 16 + i;
      float* const row = scratch_.rows + i * shape_.depth;
      for (std::int64_t d = 0; d < shape_.depth; d += 16) store(row + d, zero());
      if (query < shape_.queries) scales[i] = load_query(args_.q + query_offset(query), row);
    }
    if (few()) {
      for (std::int64_t i = 0; i < shape_.queries * shape_.depth; ++i) scratch_.few_q[i] = scratch_.rows[i];
    } else {
      transpose_cells(v);
    }
    if constexpr (D::kCell == 2) scale = mul(load(scales), scale);
    store(scratch_.q_scale + v * 16, scale);
  }

  // One query as the products take it; returns its scale, where it has one.
  float load_query(const float* q, float* row) const {
    if constexpr (D::kCell == 2) {
      const std::int64_t fits = 2147483647 / (largest_code(args_.k_cache.format, args_.head_dim) * shape_.depth);
      const auto largest = static_cast<std::int32_t>(fits < 32767 ? fits : 32767);
      return encode(q, args_.head_dim, largest, reinterpret_cast<std::int16_t*>(row));
    } else {
      read_row(reinterpret_cast<const std::uint8_t*>(q), KvFormat::kFloat32, args_.head_dim, row);
      return 0;
    }
  }

  // Moves sixteen rows of 32-bit cells into the lanes of vector v.
  void transpose_cells(std::int64_t v) {
    const std::int64_t steps = shape_.depth / D::kCell;
    float* const to = scratch_.q + v * steps * 16;
    for (std::int64_t k = 0; k < steps; k += 16) {
      const std::int64_t live = steps - k;
      Vec r[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) r[i] = load_some(scratch_.rows + i * shape_.depth + k, live);
      transpose(r);
      for (std::int64_t i = 0; i < 16 && i < live; ++i) store(to + (k + i) * 16, r[i]);
    }
  }

  void attend_tile(std::int64_t at, PartState part) {
    std::int64_t first = 0, end = chunk_.rows;  // rows that see any of the tile
    while (first < end && shape_.visible(first, at).high <= 0) ++first;
    while (end > first && shape_.visible(end - 1, at).low >= kTile) --end;
    if (first == end) return;
    tile_.fetch(args_, chunk_, at, {shape_.visible(first, at).low, shape_.visible(end - 1, at).high});
    if (few()) return few_.attend(at, tile_, part);
    for (std::int64_t v = 0; v < shape_.vectors;) {
      const std::int64_t take = shape_.vectors - v < kLaneVectors ? shape_.vectors - v : kLaneVectors;
      with_row_count<kLaneVectors>(take, [&](auto count) { tile_.template attend<decltype(count)::value>(v, part); });
      v += take;
    }
  }

  const AttentionArgs& args_;
  const AttentionChunk& chunk_;
  const ChunkShape shape_;
  const ChunkScratch scratch_;
  TileAttention<D> tile_;
  const FewQueries<D> few_;
};

// Calls body(attention) with the arithmetic that the cache's format takes.
template <typename Body>
inline void with_chunk(const AttentionArgs& args, const KeyRange& keys, const KeyRange& next, float* scratch,
                       const Body& body) {
  if (has_codes(args.k_cache.format)) {
    ChunkAttention<PairDots> attention(args, keys, next, scratch);
    return body(attention);
  }
  ChunkAttention<FloatDots> attention(args, keys, next, scratch);
  body(attention);
}

// One partition of a chunk, written to `to` (see PartState).
inline void attend_part(const AttentionArgs& args, const KeyRange& part, const KeyRange& next, float* to,
                        float* scratch) {
  with_chunk(args, part, next, scratch, [&](auto& attention) {
    attention.load_queries();
    attention.attend(part.first / kPartition, PartState(to, attention.shape().vectors));
  });
}

// Merges `count` parts in order and writes the chunk's rows of `out`; the parts are used up.
inline void finish_parts(const AttentionArgs& args, const AttentionChunk& chunk, std::int64_t kv_head, float* parts,
                         std::int64_t count, float* scratch) {
  ChunkAttention<FloatDots> attention(args, {&chunk, kv_head}, {}, scratch);
  const PartState merged = attention.empty_merged();
  const ChunkShape& shape = attention.shape();
  for (std::int64_t p = 0; p < count; ++p) {
    merge(merged, PartState(parts + p * part_floats(shape.queries, args.head_dim), shape.vectors), shape);
  }
  attention.write_out(merged);
}

// All partitions of a chunk one after the other, with the same arithmetic as the two functions above.
inline void attend_chunk(const AttentionArgs& args, const KeyRange& whole, const KeyRange& next, float* scratch) {
  with_chunk(args, whole, next, scratch, [&](auto& attention) {
    attention.load_queries();
    const std::int64_t first = whole.first / kPartition, end = whole.chunk->end_partition();
    if (attention.few() && end - first == 1) return attention.attend_only(first);
    const PartState merged = attention.empty_merged(), part = attention.part();
    for (std::int64_t p = first; p < end; ++p) {
      attention.attend(p, part);
      merge(merged, part, attention.shape());
    }
    attention.write_out(merged);
  });
}

}  // namespace headrace::kernels::HEADRACE_ISA
