// What every slot of a KV pool holds, told from plans alone: a slot holds the history of tokens up to its position.
// Applies a step's copies, then its writes, and checks that every slice reads its own history.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "core/scheduler.h"
#include "tests/check.h"
#include "tests/core_driver.h"

namespace headrace::testing {

class Shadow {
 public:
  explicit Shadow(std::int32_t block_size) : block_size_(block_size) {}

  void run(const Scheduler& core, const StepPlan& plan) {
    for (std::size_t i = 0; i < plan.clone_blocks.size(); i += 2)
      for (std::int32_t offset = 0; offset < block_size_; ++offset)
        slots_[{plan.clone_blocks[i + 1], offset}] = slots_[{plan.clone_blocks[i], offset}];
    for (std::size_t s = 0; s < plan.seq_ids.size(); ++s) write(*core.find(plan.seq_ids[s]), plan, s);
    for (std::size_t s = 0; s < plan.seq_ids.size(); ++s) read(*core.find(plan.seq_ids[s]), plan, s);
  }

 private:
  using Slot = std::pair<BlockId, std::int32_t>;

  // The history of a sequence at a position; tokens still being sampled are known here.
  static std::uint64_t history(const Sequence& seq, std::int32_t position) {
    std::uint64_t value = 1469598103934665603ull;
    for (std::int32_t p = 0; p <= position; ++p) {
      const bool known = p < static_cast<std::int32_t>(seq.tokens.size());
      value = (value ^ static_cast<std::uint64_t>(known ? seq.tokens[p] : token_at(seq.id(), p))) * 1099511628211ull;
    }
    return value;
  }
  Slot slot(const Sequence& seq, std::int32_t position) const {
    return {seq.blocks[0][position / block_size_], position % block_size_};
  }
  void write(const Sequence& seq, const StepPlan& plan, std::size_t s) {
    const std::int32_t start = plan.num_computed[s];
    for (std::int32_t p = start; p < start + plan.num_scheduled[s]; ++p) slots_[slot(seq, p)] = history(seq, p);
  }
  void read(const Sequence& seq, const StepPlan& plan, std::size_t s) {
    for (std::int32_t p = 0; p < plan.num_computed[s] + plan.num_scheduled[s]; ++p)
      CHECK_EQ(slots_[slot(seq, p)], history(seq, p));
  }

  std::int32_t block_size_;
  std::map<Slot, std::uint64_t> slots_;
};

}  // namespace headrace::testing
