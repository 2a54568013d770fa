// Matrix products with a weight, whatever its storage: cuts the work into items and shares them out. The arithmetic
// is in generic/matmul.h and generic/quantised_matmul.h; nothing here may influence a result's bits.
#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "kernels/weight.h"

namespace headrace::kernels {

// y (T, N) = rows (T, K) @ weight.T + bias (N) when there is one, where `in` says how the rows come from x. Rows of the
// weight stored as blocks meet them rounded to int8, one scale per row and 32 values (see generic/quantise.h); the
// others meet them as they are.
// With `best` (T) instead of y only the lowest n of the maxima of each row comes out, or -1 for a row without a finite
// maximum (see generic/scan.h), and the row itself is never in memory as a whole.
struct LinearArgs {
  InputRows in;
  const Weight* weight;
  const float* bias;
  float* y;
  std::int64_t tokens;
  std::int32_t* best = nullptr;
};

void linear(const LinearArgs& args);

// out (count, K) = rows of the weight by id, each in [0, N).
struct EmbeddingArgs {
  const Weight* weight;
  const std::int32_t* ids;
  float* out;
  std::int64_t count;
};

}  // namespace headrace::kernels
