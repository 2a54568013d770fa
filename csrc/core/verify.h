// How many drafts each sequence of a step should have verified: spend rows where acceptance is likely, up to the total
// that emits the most tokens per millisecond. A pure function. A confidence is never an acceptance: what is really
// accepted the sampler alone decides.
#pragma once

#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "core/types.h"

namespace headrace::core {

// What a step costs, at one moment: a curve over captured sizes and two corrections (see cost.h). In milliseconds.
struct StepCost {
  std::vector<std::int32_t> sizes;  // rows a captured graph holds, ascending; empty = not known
  std::vector<double> times_ms;     // of a step of that size
  double slope_ms = 0;              // per row, on top of the curve
  double sampler_ms = 0;            // where a number of sequences has no time of its own
  std::vector<std::pair<std::int32_t, double>> sampler_by_seqs;

  bool known() const { return !sizes.empty(); }
  // Of a step with `total` rows of `num_seqs` sequences; infinite beyond the last size.
  double time_ms(std::int32_t total, std::int32_t num_seqs) const;
};

// Throws InvalidField unless sizes rise, and times (positive) and corrections are finite and not negative.
void check_cost(const StepCost& cost);
// Throws InvalidField unless every confidence lies between 0 and 1.
void check_confidences(std::span<const double> confidences);

// One sequence's drafts. Confidence j: draft j is accepted, given that all before it were; none known: an empty span.
struct VerifyRow {
  std::int32_t num_drafts = 0;
  std::span<const double> confidences;
};

struct VerifyChoice {
  std::int32_t total = 0;            // rows of the step: one per sequence and one per draft verified
  double expected = 0;               // tokens it should emit
  double time_ms = 0;                // 0 when the cost is not known
  std::vector<std::int32_t> drafts;  // to verify, per sequence
};

// The best total of at most `max_total` rows (never below one per sequence). The first of equal totals wins. Without a
// curve every draft is verified that has room.
VerifyChoice choose_drafts(std::span<const VerifyRow> rows, const StepCost& cost,
                           std::int32_t max_total = std::numeric_limits<std::int32_t>::max());
// Drafts per sequence for a given total: what the device does with newer confidences than the host had.
std::vector<std::int32_t> drafts_for_total(std::span<const VerifyRow> rows, std::int32_t total);

}  // namespace headrace::core
