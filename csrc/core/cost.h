// The running estimate of what a step costs: a curve profiled at start, corrected by what steps really took. Keeps
// samples only; no clock, no disk. snapshot() is what the verification planner works with.
#pragma once

#include <deque>
#include <map>
#include <optional>

#include "core/verify.h"

namespace headrace::core {

// The middle value; of an even number of values the mean of the two in the middle. Throws std::logic_error for none.
double median(std::vector<double> values);

class CostModel {
 public:
  static constexpr std::size_t kStepWindow = 5000;   // steps remembered, over all sizes
  static constexpr std::size_t kStepSamples = 10;    // from which on a size counts
  static constexpr std::size_t kSamplerWindow = 9;   // sampler times remembered per number of sequences
  static constexpr std::size_t kSamplerSamples = 5;  // from which on their median counts

  // A curve over captured sizes. Throws InvalidField when sizes do not rise or times are not positive.
  CostModel(std::vector<std::int32_t> sizes, std::vector<double> times_ms);

  // A step that ran in the captured size `size` took this long, sampling left out. Throws InvalidField for a size that
  // was not captured or a time that is not a finite number >= 0.
  void add_step(std::int32_t size, double ms);
  void add_sampler(std::int32_t num_seqs, double ms);

  // max(0, median over sizes of the median of (measured - curve) / size); 0 until a size has enough samples.
  double slope_ms() const;
  // Median of the last times for this number of sequences, or over all; 0 until there are enough.
  double sampler_ms(std::int32_t num_seqs) const;
  StepCost snapshot() const;

 private:
  static std::optional<double> recent(const std::deque<double>& times);

  std::vector<std::int32_t> sizes_;
  std::vector<double> times_ms_;
  std::deque<std::pair<std::int32_t, double>> steps_;    // (size, excess per row), oldest first
  std::map<std::int32_t, std::deque<double>> samplers_;  // per number of sequences, oldest first
  std::deque<double> all_samplers_;
  mutable std::optional<double> slope_ms_;  // until the next sample
};

}  // namespace headrace::core
