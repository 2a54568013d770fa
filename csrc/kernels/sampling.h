// Drawing tokens and reporting log-probabilities. Rows are independent and each runs in one thread.
#pragma once

#include <cstdint>

namespace headrace::kernels {

// Per-row knobs as in the Python interface: temperature 0 is greedy, top_k 0, top_p 1 and min_p 0 are off.
struct SampleArgs {
  const float* logits;  // (rows, vocab)
  std::int64_t rows, vocab;
  const float* temperature;
  const std::int32_t* top_k;
  const float* top_p;
  const float* min_p;
  const std::int64_t* seed;
  const std::int64_t* position;
  std::int32_t* out;  // (rows): the id, or -1 for a row without a finite maximum
};
void sample(const SampleArgs& args);

// Log-softmax at ids and at the n best. An id of -1 gives NaN and rank 0. NaN logits are never among the best
// while others are left.
struct LogprobArgs {
  const float* logits;  // (rows, vocab)
  const std::int32_t* ids;
  std::int64_t rows, vocab, n;
  float* chosen;          // (rows)
  std::int32_t* rank;     // (rows), from 1
  std::int32_t* top_ids;  // (rows, n)
  float* top_values;      // (rows, n)
};
void gather_logprobs(const LogprobArgs& args);

}  // namespace headrace::kernels
