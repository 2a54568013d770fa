// Matrix products with a weight, whatever its storage: cuts the work into items and shares them out. The arithmetic
// is in generic/matmul.h and generic/quantised_matmul.h; nothing here may influence a result's bits.
#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "kernels/weight.h"

namespace headrace::kernels {

// y (T, N) = x (T, K) @ weight.T + bias (N) when there is one. Rows stored as blocks meet x rounded to int8, one
// scale per row and 32 values (see generic/quantise.h); the others meet x itself.
struct LinearArgs {
  const float* x;
  const Weight* weight;
  const float* bias;
  float* y;
  std::int64_t tokens;
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
