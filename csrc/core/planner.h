// What every planner works on, and what it decides. A planner is a pure function of the queues, the allocator and the
// limits; it fills a Decision, which Scheduler turns into a StepPlan. It never communicates and never waits.
#pragma once

#include <functional>
#include <vector>

#include "core/allocator.h"
#include "core/plan.h"
#include "core/queues.h"

namespace headrace::core {

struct Slice {
  Sequence* seq = nullptr;
  std::int32_t q = 0;
  std::int32_t drafts = 0;
  Clip clip = Clip::kWhole;
};

struct Budgets {
  std::int32_t tokens = 0;
  std::int32_t inputs = 0;
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
  StepPlan& plan;  // notes go here
  // Takes back everything of a running sequence and puts it at the head of waiting.
  std::function<void(Sequence&, StaleMode)> preempt;
  // Makes a slice part of the step: the ledger advances and the blocks it fills are named, so that a twin planned
  // later in the same step can share them. A slice that may still be preempted must not be settled yet.
  std::function<void(const Slice&)> settle;
};

// The unified token-budget discipline: running first, then waiting; prefill, decode and verification alike.
Decision plan_mixed(PlanContext& context);

}  // namespace headrace::core
