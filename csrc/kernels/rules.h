// Changes to raw logits: allowed ids, biases, penalties, bans. Ragged arrays as in the Python interface.
#pragma once

#include <cstdint>

namespace headrace::kernels {

// One flat array cut into rows: row r is [offsets[r], offsets[r + 1]).
struct RaggedIds {
  const std::int32_t* offsets;
  const std::int32_t* ids;
};

struct RuleArgs {
  float* logits;  // (rows, vocab), in place
  std::int64_t rows, vocab;
  RaggedIds allow, bias, prompt, output, ban;
  const float* bias_values;
  const float *repetition, *presence, *frequency;
};

// Order: allow, bias, penalties (repetition, frequency, presence), ban. Ids must lie in [0, vocab).
void apply_rules(const RuleArgs& args);

}  // namespace headrace::kernels
