#include "core/cost.h"

#include <algorithm>
#include <cmath>

namespace headrace::core {
namespace {

void check_duration(const char* field, double ms) {
  if (!std::isfinite(ms) || ms < 0) throw InvalidField(field, "must be finite and not negative");
}

void remember(std::deque<double>& times, double ms) {
  times.push_back(ms);
  if (times.size() > CostModel::kSamplerWindow) times.pop_front();
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) throw std::logic_error("median of nothing");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

CostModel::CostModel(std::vector<std::int32_t> sizes, std::vector<double> times_ms)
    : sizes_(std::move(sizes)), times_ms_(std::move(times_ms)) {
  if (sizes_.empty()) throw InvalidField("sizes", "must hold at least one size");
  StepCost curve;
  curve.sizes = sizes_, curve.times_ms = times_ms_;
  check_cost(curve);
}

void CostModel::add_step(std::int32_t size, double ms) {
  check_duration("ms", ms);
  const auto found = std::find(sizes_.begin(), sizes_.end(), size);
  if (found == sizes_.end()) throw InvalidField("size", std::to_string(size) + " was not captured");
  steps_.emplace_back(size, (ms - times_ms_[found - sizes_.begin()]) / size);
  if (steps_.size() > kStepWindow) steps_.pop_front();
  slope_ms_.reset();
}

void CostModel::add_sampler(std::int32_t num_seqs, double ms) {
  check_duration("ms", ms);
  remember(samplers_[num_seqs], ms);
  remember(all_samplers_, ms);
}

double CostModel::slope_ms() const {
  if (slope_ms_) return *slope_ms_;
  std::map<std::int32_t, std::vector<double>> by_size;
  for (const auto& [size, excess] : steps_) by_size[size].push_back(excess);
  std::vector<double> medians;
  for (auto& [size, excesses] : by_size)
    if (excesses.size() >= kStepSamples) medians.push_back(median(std::move(excesses)));
  slope_ms_ = medians.empty() ? 0.0 : std::max(0.0, median(std::move(medians)));
  return *slope_ms_;
}

std::optional<double> CostModel::recent(const std::deque<double>& times) {
  if (times.size() < kSamplerSamples) return std::nullopt;
  return median({times.begin(), times.end()});
}

double CostModel::sampler_ms(std::int32_t num_seqs) const {
  const auto own = samplers_.find(num_seqs);
  if (own != samplers_.end())
    if (const auto ms = recent(own->second)) return *ms;
  return recent(all_samplers_).value_or(0.0);
}

StepCost CostModel::snapshot() const {
  StepCost cost{sizes_, times_ms_, slope_ms(), recent(all_samplers_).value_or(0.0), {}};
  for (const auto& [seqs, times] : samplers_)
    if (const auto ms = recent(times)) cost.sampler_by_seqs.emplace_back(seqs, *ms);
  return cost;
}

}  // namespace headrace::core
