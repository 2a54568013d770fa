// Activations as int8: each group of 32 values of a row gets its own scale, largest magnitude / 127, and integers
// rounded to nearest even. A row's codes depend on that row alone. Every instruction set gives the same bits.
#pragma once

#include "kernels/generic/tile.h"
#include "kernels/ops.h"

namespace headrace::kernels::HEADRACE_ISA {

// Few rows are cut into tall tiles, each panel by itself: what a step of few rows waits for is memory. Many rows are
// cut into tiles of half the height that take kWidePanels panels at a time: they load less per product.
inline constexpr std::int64_t kWideFrom = 25;
#ifdef HEADRACE_SHORT_TILES
inline constexpr int kTileHeight = 2;  // sanitised code of tall tiles takes minutes and gigabytes to compile
inline constexpr int kWidePanels = 1, kWideHeight = 2;
#else
inline constexpr int kTileHeight = kQuantisedTileRows;
inline constexpr int kWidePanels = kQuantisedWidePanels, kWideHeight = kTileHeight / kWidePanels;
#endif
static_assert(kRowBlock % kTileHeight == 0 && kRowBlock % kWideHeight == 0);

// Cuts a block of rows into tiles; body(first row, RowCount<M>{}). Quantised rows lie in memory tile by tile.
template <typename Body>
inline void for_quantised_tiles(std::int64_t rows, const Body& body) {
  if (rows >= kWideFrom) {
    for_row_tiles<kWideHeight>(rows, body);
  } else {
    for_row_tiles<kTileHeight>(rows, body);
  }
}

// Below this a group counts as zero: 127 / its largest magnitude would come near the end of the range.
inline constexpr float kNextToNothing = 0x1p-100f;

// A group with a NaN or an infinity gets scale NaN and codes 0, which makes every product of the row NaN.
inline void quantise_group(const float* x, ActivationBlock& out) {
  const Vec first = load(x), second = load(x + 16);
  const Vec a = abs(first), b = abs(second), endless = set1(__builtin_inff());
  const bool finite = bits(both(less(a, endless), less(b, endless))) == 0xFFFFu;
  const float largest = finite ? max_of(max(a, b)) : 0.0f;
  const bool some = largest >= kNextToNothing;
  const Vec inverse = set1(some ? 127.0f / largest : 0.0f);
  const Vec low = finite ? round(mul(first, inverse)) : zero(), high = finite ? round(mul(second, inverse)) : zero();
  store_bytes(out.codes, low);
  store_bytes(out.codes + 16, high);
  const float low_sum = sum(low), total = sum(add(low, high));  // whole numbers below 2^13: exact in any order
  out.scale = !finite ? __builtin_nanf("") : some ? largest / 127.0f : 0.0f;
  out.scaled_sum = out.scale * total;
  out.minus_sum = -static_cast<std::int32_t>(total);
  out.minus_first = -static_cast<std::int32_t>(low_sum);
}

// Row x (k) to blocks out[0], out[stride], ...
inline void quantise_row(const float* x, std::int64_t k, ActivationBlock* out, std::int64_t stride) {
  for (std::int64_t g = 0; g < k / kGroupValues; ++g) quantise_group(x + g * kGroupValues, out[g * stride]);
}

}  // namespace headrace::kernels::HEADRACE_ISA
