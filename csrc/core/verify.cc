#include "core/verify.h"

#include <algorithm>
#include <cmath>

namespace headrace::core {
namespace {

struct Pair {
  double rate;  // that this draft and all before it are accepted
  std::size_t row;
};

// Every draft of the batch, likeliest first. The sort is stable and rates never rise along a sequence, so equal rates
// keep the order of sequences, and within one the order of drafts.
std::vector<Pair> ranked(std::span<const VerifyRow> rows) {
  std::vector<Pair> pairs;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool rated = !rows[i].confidences.empty();
    const auto known = static_cast<std::int32_t>(rows[i].confidences.size());
    const std::int32_t count = rated ? std::min(rows[i].num_drafts, known) : rows[i].num_drafts;
    double rate = 1.0;
    for (std::int32_t j = 0; j < count; ++j) {
      if (rated) rate *= rows[i].confidences[j];
      pairs.push_back({rate, i});
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) { return a.rate > b.rate; });
  return pairs;
}

std::vector<std::int32_t> counted(const std::vector<Pair>& pairs, std::size_t taken, std::size_t num_rows) {
  std::vector<std::int32_t> drafts(num_rows, 0);
  for (std::size_t k = 0; k < taken; ++k) ++drafts[pairs[k].row];
  return drafts;
}

}  // namespace

double StepCost::time_ms(std::int32_t total, std::int32_t num_seqs) const {
  const auto size = std::lower_bound(sizes.begin(), sizes.end(), total);
  if (size == sizes.end()) return std::numeric_limits<double>::infinity();
  double sampler = sampler_ms;
  for (const auto& [seqs, ms] : sampler_by_seqs)
    if (seqs == num_seqs) sampler = ms;
  return times_ms[size - sizes.begin()] + slope_ms * *size + sampler;
}

void check_cost(const StepCost& cost) {
  if (cost.times_ms.size() != cost.sizes.size()) throw InvalidField("times_ms", "must hold one time per size");
  for (std::size_t i = 0; i < cost.sizes.size(); ++i) {
    if (cost.sizes[i] < 1 || (i > 0 && cost.sizes[i] <= cost.sizes[i - 1]))
      throw InvalidField("sizes", "must be positive and rise");
    if (!std::isfinite(cost.times_ms[i]) || cost.times_ms[i] <= 0)
      throw InvalidField("times_ms", "must be positive and finite");
  }
  const auto duration = [](const char* field, double ms) {
    if (!std::isfinite(ms) || ms < 0) throw InvalidField(field, "must be finite and not negative");
  };
  duration("slope_ms", cost.slope_ms);
  duration("sampler_ms", cost.sampler_ms);
  for (const auto& [seqs, ms] : cost.sampler_by_seqs) duration("sampler_by_seqs", ms);
}

void check_confidences(std::span<const double> confidences) {
  for (const double c : confidences)
    if (!(c >= 0 && c <= 1)) throw InvalidField("confidences", "must lie between 0 and 1");
}

VerifyChoice choose_drafts(std::span<const VerifyRow> rows, const StepCost& cost, std::int32_t max_total) {
  const auto num_seqs = static_cast<std::int32_t>(rows.size());
  const std::vector<Pair> pairs = ranked(rows);
  const std::size_t room = static_cast<std::size_t>(std::max(0, max_total - num_seqs));
  const std::size_t most = std::min(pairs.size(), room);
  std::size_t best = cost.known() ? 0 : most;
  double best_speed = -1, accepted = 0;
  VerifyChoice choice;
  for (std::size_t k = 0; k <= most; ++k) {
    if (k > 0) accepted += pairs[k - 1].rate;
    const double expected = num_seqs + accepted;
    const double time = cost.known() ? cost.time_ms(num_seqs + static_cast<std::int32_t>(k), num_seqs) : 0;
    // Beyond the last size nothing may be chosen; one row per sequence is no choice.
    const bool wins = cost.known() ? k == 0 || (std::isfinite(time) && expected / time > best_speed) : k == best;
    if (!wins) continue;
    best = k, best_speed = expected / time;
    choice.expected = expected, choice.time_ms = time;
  }
  choice.total = num_seqs + static_cast<std::int32_t>(best);
  choice.drafts = counted(pairs, best, rows.size());
  return choice;
}

std::vector<std::int32_t> drafts_for_total(std::span<const VerifyRow> rows, std::int32_t total) {
  const std::vector<Pair> pairs = ranked(rows);
  const auto room = std::max<std::int64_t>(0, std::int64_t{total} - static_cast<std::int64_t>(rows.size()));
  return counted(pairs, std::min<std::size_t>(pairs.size(), room), rows.size());
}

}  // namespace headrace::core
