#include "kernels/rules.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/threads.h"

namespace headrace::kernels {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

struct Run {
  const std::int32_t *begin_, *end_;
  const std::int32_t* begin() const { return begin_; }
  const std::int32_t* end() const { return end_; }
  bool empty() const { return begin_ == end_; }
};

Run run(const RaggedIds& ragged, std::int64_t row) {
  return {ragged.ids + ragged.offsets[row], ragged.ids + ragged.offsets[row + 1]};
}

void keep_only(float* logits, std::int64_t vocab, Run allowed) {
  std::vector<float> kept;
  for (std::int32_t id : allowed) kept.push_back(logits[id]);
  std::fill(logits, logits + vocab, kNever);
  auto value = kept.begin();
  for (std::int32_t id : allowed) logits[id] = *value++;
}

void penalise_repetition(float* logits, Run prompt, Run output, float penalty) {
  std::vector<std::int32_t> seen(prompt.begin(), prompt.end());
  seen.insert(seen.end(), output.begin(), output.end());
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  for (std::int32_t id : seen) logits[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
}

void penalise_output(float* logits, Run output, float frequency, float presence) {
  std::vector<std::int32_t> sorted(output.begin(), output.end());
  std::sort(sorted.begin(), sorted.end());
  for (auto at = sorted.begin(); at != sorted.end();) {
    const auto end = std::upper_bound(at, sorted.end(), *at);
    logits[*at] -= frequency * static_cast<float>(end - at);
    logits[*at] -= presence;
    at = end;
  }
}

void apply_row(const RuleArgs& args, std::int64_t row) {
  float* const logits = args.logits + row * args.vocab;
  const Run allow = run(args.allow, row), output = run(args.output, row);
  if (!allow.empty()) keep_only(logits, args.vocab, allow);
  for (std::int32_t i = args.bias.offsets[row]; i < args.bias.offsets[row + 1]; ++i) {
    logits[args.bias.ids[i]] += args.bias_values[i];
  }
  if (args.repetition[row] != 1) penalise_repetition(logits, run(args.prompt, row), output, args.repetition[row]);
  if (args.frequency[row] != 0 || args.presence[row] != 0) {
    penalise_output(logits, output, args.frequency[row], args.presence[row]);
  }
  for (std::int32_t id : run(args.ban, row)) logits[id] = kNever;
}

}  // namespace

void apply_rules(const RuleArgs& args) {
  parallel_for(args.rows, [&](std::int64_t row) { apply_row(args, row); });
}

}  // namespace headrace::kernels
