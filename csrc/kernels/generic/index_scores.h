// Index scores: sum over heads of weights[h] * relu(q[h] . key), keys as they are stored. A dot product is one chain
// over the depth, heads are added in their order: the same sums as by `linear`, whatever is computed beside them.
#pragma once

#include "kernels/generic/records.h"
#include "kernels/generic/tile.h"

namespace headrace::kernels::HEADRACE_ISA {

// Up to sixteen keys, side by side: value d of key n to panel[d * 16 + n], what is missing as zero.
inline void load_index_panel(const ChooseArgs& args, std::int64_t slice, std::int64_t first, std::int64_t count,
                             float* rows, float* panel) {
  for (std::int64_t n = 0; n < 16; ++n) {
    float* const row = rows + n * args.depth;
    if (n < count) {
      unpack_mxfp4(args.codes.at(slice, first + n), args.scales.at(slice, first + n), args.depth, row);
    } else {
      for (std::int64_t d = 0; d < args.depth; ++d) row[d] = 0.0f;
    }
  }
  for (std::int64_t d = 0; d < args.depth; d += 16) {
    Vec block[16];
    for (int n = 0; n < 16; ++n) block[n] = load(rows + n * args.depth + d);
    transpose(block);
    for (int i = 0; i < 16; ++i) store(panel + (d + i) * 16, block[i]);
  }
}

// As ScoreTile says; `scratch` holds score_scratch_floats.
inline void score_keys(const ChooseArgs& args, const ScoreTile& tile, float* scratch) {
  const std::int64_t panels = (tile.end - tile.first + 15) / 16, wide = panels * 16;
  float *const keys = scratch, *const products = keys + kScoreKeys * args.depth;
  float* const rows = products + kScoreKeys * args.heads;
  for (std::int64_t p = 0; p < panels; ++p) {
    const std::int64_t first = tile.first + p * 16, left = tile.end - first;
    load_index_panel(args, tile.slice, first, left < 16 ? left : 16, rows, keys + p * 16 * args.depth);
  }
  for (std::int64_t i = 0; i < tile.rows; ++i) {
    const std::int64_t row = tile.row + i;
    multiply_panels({args.q + row * args.heads * args.depth, args.depth}, args.heads, {keys, 16 * args.depth, 16},
                    args.depth, panels, products, wide, false);
    const float* const weights = args.weights + row * args.heads;
    for (std::int64_t n = 0; n < wide; n += 16) {
      Vec total = mul(max(zero(), load(products + n)), set1(weights[0]));
      for (std::int64_t h = 1; h < args.heads; ++h) {
        total = add(total, mul(max(zero(), load(products + h * wide + n)), set1(weights[h])));
      }
      store(tile.out + i * tile.stride + n, total);
    }
  }
}

}  // namespace headrace::kernels::HEADRACE_ISA
