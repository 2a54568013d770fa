// What every planner works on, and what it decides. A planner is a pure function of the queues, the allocator and the
// limits; it fills a Decision, which Scheduler turns into a StepPlan. It never communicates and never waits.
#pragma once

#include <functional>
#include <limits>
#include <vector>

#include "core/allocator.h"
#include "core/plan.h"
#include "core/queues.h"
#include "core/verify.h"

namespace headrace::core {

struct Slice {
  Sequence* seq = nullptr;
  std::int32_t q = 0;
  std::int32_t drafts = 0;
  Clip clip = Clip::kWhole;
  bool settled = false;  // part of the step, see PlanContext::settle
};

// What a step has left. `keys` and `time_ns` are of prompt steps; infinite where there is no limit.
struct Budgets {
  std::int32_t tokens = 0;
  std::int32_t inputs = 0;
  std::int64_t keys = std::numeric_limits<std::int64_t>::max();
  double time_ns = std::numeric_limits<double>::infinity();
};

struct Decision {
  std::vector<Slice> slices;
  Budgets left;
  bool preempted = false;
};

struct PlanContext {
  Queues& queues;
  Allocator& allocator;
  const Limits& limits;
  StepPlan& plan;        // notes and chores go here
  const StepCost& cost;  // what verifying more drafts costs
  // Takes back everything of a running sequence and puts it at the head of waiting.
  std::function<void(Sequence&, StaleMode)> preempt;
  // Makes a slice part of the step: the ledger advances and the blocks it fills are named, so that a twin planned
  // later in the same step can share them. A slice that may still be preempted must not be settled yet.
  std::function<void(const Slice&)> settle;
};

// The unified token-budget discipline: running first, then waiting; prefill, decode and verification alike.
Decision plan_mixed(PlanContext& context);

// Prompts only: head of waiting first, in slices; whoever has all its tokens planned becomes prompted.
// `plan.time_budget_ns` (0 = none) limits the step's predicted time; the first slice is never refused for it.
Decision plan_prefill(PlanContext& context);
// Whether plan_prefill would schedule something, once the `dead` are swept. Changes nothing that can be observed.
bool prefill_possible(PlanContext& context, const std::function<bool(const Sequence&)>& dead);

// Decoding and verification only: prompted sequences join, outputs that are shortest are served first, and whoever
// has the longest gives way.
Decision plan_decode(PlanContext& context);

// Takes from running sequences the drafts that are not worth verifying; nothing while the cost is not known.
void trim_drafts(PlanContext& context);
// Reasons for which a waiting sequence is passed over without blocking those behind it; noted.
bool passed_over(PlanContext& context, const Sequence& seq);
// Blocks missing for the whole of a waiting sequence as known now, beyond what its hit already holds.
std::int32_t missing_for_all(const PlanContext& context, const Sequence& seq, const Hit& hit);
// A sequence whose steps in flight may already finish it needs no further token.
std::int32_t running_need(const Sequence& seq, const Limits& limits);

}  // namespace headrace::core
