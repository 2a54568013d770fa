#include "kernels/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/dispatch.h"
#include "kernels/select.h"
#include "kernels/threads.h"

namespace headrace::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One row's filters; top_k 0 is off. Below, z are logits relative to the best, over the temperature, and an
// entry's weight is exp(z).
struct Filters {
  std::int64_t top_k;
  float top_p, min_p;

  bool open() const { return top_k == 0 && !(top_p < 1) && !(min_p > 0); }
};

double total_weight(const std::vector<Candidate>& candidates) {
  double total = 0;
  for (const Candidate& c : candidates) total += std::exp(static_cast<double>(c.value));
  return total;
}

// Keeps the shortest run of best candidates whose weight reaches top_p of `total`: the one that crosses
// stays.
void cut_to_mass(std::vector<Candidate>& candidates, double top_p, double total) {
  double before = 0;
  std::size_t kept = 0;
  while (kept < candidates.size() && (kept == 0 || before < top_p * total)) {
    before += std::exp(static_cast<double>(candidates[kept++].value));
  }
  candidates.resize(kept);
}

// The best entries that hold top_p of all weight, found without sorting the tail: limits are tried from the
// top down until enough lies above.
std::vector<Candidate> nucleus(const std::vector<float>& z, double top_p) {
  const auto n = static_cast<std::int64_t>(z.size());
  const double total = static_cast<double>(table().sum_exp(z.data(), n, 0));
  std::vector<Candidate> found;
  for (float limit : {-2.0f, -5.0f, -8.0f, -11.0f, -16.0f, -kInfinity}) {
    found = at_least(z.data(), n, limit);
    if (total_weight(found) >= top_p * total) break;
  }
  cut_to_mass(found, top_p, total);
  return found;
}

// min-p, top-k, top-p. Each keeps a run from the front of one order, so the first two only shorten the list.
std::vector<Candidate> filter(const std::vector<float>& z, const Filters& filters) {
  const auto n = static_cast<std::int64_t>(z.size());
  if (filters.top_k == 0 && filters.min_p <= 0) return nucleus(z, filters.top_p);
  const float floor = filters.min_p > 0 ? std::min(std::log(filters.min_p), 0.0f) : -kInfinity;
  std::vector<Candidate> found = filters.top_k ? best(z.data(), n, filters.top_k) : at_least(z.data(), n, floor);
  while (found.back().value < floor) found.pop_back();  // stops at the best one, whose value is 0
  if (filters.top_p < 1) cut_to_mass(found, filters.top_p, total_weight(found));
  return found;
}

std::int32_t draw_among(const std::vector<Candidate>& candidates, NoiseKey key) {
  std::vector<float> z;
  std::vector<std::int32_t> ids;
  for (const Candidate& c : candidates) z.push_back(c.value), ids.push_back(c.id);
  return table().draw(z.data(), ids.data(), static_cast<std::int64_t>(z.size()), key);
}

std::int32_t sample_row(const SampleArgs& args, std::int64_t row) {
  const float* const logits = args.logits + row * args.vocab;
  const RowTop top = table().row_top(logits, args.vocab);
  if (!std::isfinite(top.value)) return -1;
  if (!(args.temperature[row] > 0)) return top.id;
  std::vector<float> z(static_cast<std::size_t>(args.vocab));
  table().relative_logits(logits, args.vocab, top.value, args.temperature[row], z.data());
  const NoiseKey key{static_cast<std::uint64_t>(args.seed[row]), static_cast<std::uint64_t>(args.position[row])};
  const std::int64_t top_k = args.top_k[row] < args.vocab ? std::max(args.top_k[row], 0) : 0;
  const Filters filters{top_k, args.top_p[row], args.min_p[row]};
  if (filters.open()) return table().draw(z.data(), nullptr, args.vocab, key);
  return draw_among(filter(z, filters), key);
}

void logprobs_row(const LogprobArgs& args, std::int64_t row) {
  const float* const logits = args.logits + row * args.vocab;
  const float top = table().row_top(logits, args.vocab).value;
  const float norm = std::log(table().sum_exp(logits, args.vocab, top));
  const auto logprob = [&](std::int32_t id) { return (logits[id] - top) - norm; };
  const std::int32_t id = args.ids[row];
  args.chosen[row] = id < 0 ? std::numeric_limits<float>::quiet_NaN() : logprob(id);
  args.rank[row] = id < 0 ? 0 : static_cast<std::int32_t>(table().count_ahead(logits, args.vocab, logits[id], id) + 1);
  std::vector<Candidate> ranked = best(logits, args.vocab, args.n);
  for (std::int32_t i = 0; static_cast<std::int64_t>(ranked.size()) < args.n; ++i) {
    if (std::isnan(logits[i])) ranked.push_back({logits[i], i});
  }
  for (std::int64_t i = 0; i < args.n; ++i) {
    const std::int32_t best_id = ranked[static_cast<std::size_t>(i)].id;
    args.top_ids[row * args.n + i] = best_id;
    args.top_values[row * args.n + i] = logprob(best_id);
  }
}

}  // namespace

void sample(const SampleArgs& args) {
  parallel_for(args.rows, [&](std::int64_t row) { args.out[row] = sample_row(args, row); });
}

void gather_logprobs(const LogprobArgs& args) {
  parallel_for(args.rows, [&](std::int64_t row) { logprobs_row(args, row); });
}

}  // namespace headrace::kernels
