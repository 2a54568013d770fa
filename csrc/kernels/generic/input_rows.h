// The rows that a product reads, made from x row by row: as they are, normed (with an addition first), or gated. A row
// is made and, for integer kernels, rounded while it is in the first cache, so nothing of it is written in between.
// The arithmetic is that of elementwise.h and quantise.h to the bit; nothing here looks at more than one row.
#pragma once

#include "kernels/generic/elementwise.h"
#include "kernels/generic/quantise.h"
#include "kernels/ops.h"

namespace headrace::kernels::HEADRACE_ISA {

// Row `row`, k values; made in `space` (k) unless x has it already.
inline const float* input_row(const InputRows& in, std::int64_t row, float* space) {
  const float* const x = in.x + row * in.x_width();
  switch (in.made) {
    case Made::kAsIs:
      return x;
    case Made::kNorm: {
      const std::int64_t at = row * in.k;
      float* const sum = in.residual ? in.sum_out + at : nullptr;
      norm_row({x, in.residual ? in.residual + at : nullptr, in.norm, space, sum, 1, in.k, in.eps}, 0);
      return space;
    }
    case Made::kGate:
      gate_row({in.gate, x, space, 1, in.k}, 0);
      return space;
  }
  __builtin_unreachable();
}

// Rows to out (T, K) in float32.
inline void make_rows(const InputRows& in, Stretch rows, float* out) {
  for (std::int64_t row = rows.first; row < rows.first + rows.count; ++row) {
    float* const to = out + row * in.k;
    const float* const made = input_row(in, row, to);
    if (made != to) __builtin_memcpy(to, made, static_cast<std::size_t>(in.k) * sizeof(float));
  }
}

// Every parts-th tile of the rows to `out`, tile by tile, in the order that quantised_product reads (see ops.h).
inline void quantise_rows(const InputRows& in, Stretch rows, std::int64_t part, std::int64_t parts, float* space,
                          ActivationBlock* out) {
  std::int64_t number = 0;
  for_quantised_tiles(rows.count, [&](std::int64_t at, auto count) {
    constexpr int M = decltype(count)::value;
    if (number++ % parts != part) return;
    const std::int64_t first = rows.first + at;
    ActivationBlock* const tile = out + first * (in.k / kGroupValues);
    for (int m = 0; m < M; ++m) quantise_row(input_row(in, first + m, space), in.k, tile + m, M);
  });
}

}  // namespace headrace::kernels::HEADRACE_ISA
