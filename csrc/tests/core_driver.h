// Drives a scheduler as an engine and a device would: plans, keeps steps in flight, returns results whose tokens are
// a function of (sequence, position), and checks the invariants that hold between any two calls.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <set>

#include "core/scheduler.h"
#include "tests/check.h"

namespace headrace::testing {

using namespace headrace::core;

inline std::vector<Token> prompt_of(std::int32_t length, Token first = 0) {
  std::vector<Token> out(length);
  std::iota(out.begin(), out.end(), first);
  return out;
}

inline Token token_at(SeqId id, std::int32_t position) {
  return 1000 + static_cast<Token>((id * 31 + position * 7) % 900);
}

class Driver {
 public:
  explicit Driver(SchedulerConfig config) : core(std::move(config)) {}

  void add(SeqId id, std::vector<Token> prompt, std::int32_t max_tokens, std::int64_t priority = 0,
           double arrival = 0) {
    SequenceSpec spec;
    spec.id = id, spec.prompt = std::move(prompt), spec.max_tokens = max_tokens;
    spec.priority = priority, spec.arrival = arrival;
    core.add(std::move(spec));
  }

  // Plans a step; false when there is nothing to run.
  bool plan(StepKind kind = StepKind::kMixed, const PlanOptions& options = {}) {
    StepPlan plan = core.plan(kind, options);
    check();
    last = plan;
    if (plan.seq_ids.empty()) return false;
    CHECK(plan.total_tokens() <= core.config().limits.token_budget);
    in_flight.push_back(std::move(plan));
    return true;
  }

  // Returns the oldest step's result. A row emits as a model would: what comes after its last input. Rejects drafts
  // that are not what would have been sampled.
  CommitResult commit() {
    const StepPlan plan = std::move(in_flight.front());
    in_flight.pop_front();
    std::vector<std::int32_t> valid, offsets{0};
    std::vector<Token> tokens;
    std::size_t draft = 0;
    for (std::size_t i = 0; i < plan.seq_ids.size(); ++i) {
      const std::int32_t drafts = plan.num_drafts[i], end = plan.num_computed[i] + plan.num_scheduled[i];
      std::int32_t accepted = 0;
      while (accepted < drafts &&
             plan.draft_tokens[draft + accepted] == token_at(plan.seq_ids[i], end - drafts + accepted))
        ++accepted;
      draft += drafts;
      valid.push_back(plan.num_scheduled[i] - (drafts - accepted));
      move_back(plan.seq_ids[i], drafts - accepted);
      for (std::int32_t a = 0; plan.samples[i] && a <= accepted; ++a)
        tokens.push_back(token_at(plan.seq_ids[i], end - drafts + a));
      offsets.push_back(static_cast<std::int32_t>(tokens.size()));
    }
    const CommitResult result = core.commit(plan.step, valid, offsets, tokens);
    check();
    return result;
  }

  std::vector<SeqId> fail() {
    const std::vector<SeqId> alive = core.fail(in_flight.front().step);
    in_flight.pop_front();
    check();
    return alive;
  }

  // The result of the oldest step as raw arrays, for results that must be refused.
  CommitResult commit_raw(std::vector<std::int32_t> valid, std::vector<std::int32_t> offsets,
                          std::vector<Token> tokens) {
    return core.commit(in_flight.front().step, valid, offsets, tokens);
  }

  // Plans and commits until nothing is left to do.
  void run_dry(int most_steps = 100000) {
    for (int i = 0; i < most_steps; ++i) {
      const bool planned = plan();
      if (!in_flight.empty()) {
        commit();
      } else if (!planned) {
        return;
      }
    }
    ::headrace::testing::fail(__FILE__, __LINE__, "the scheduler does not come to rest");
  }

  // The same for a NORMAL engine: prompts whenever possible, decoding otherwise.
  void run_dry_phased(int most_steps = 100000) {
    for (int i = 0; i < most_steps; ++i) {
      const bool possible = core.prefill_possible();
      const bool planned = plan(StepKind::kPrefill);
      CHECK_EQ(planned, possible);
      if (!in_flight.empty()) {
        commit();
      } else if (!plan(StepKind::kDecode) && core.num_unfinished() == 0) {
        return;
      } else if (!in_flight.empty()) {
        commit();
      }
    }
    ::headrace::testing::fail(__FILE__, __LINE__, "the scheduler does not come to rest");
  }

  std::int32_t scheduled(SeqId id) const {
    const auto it = std::find(last.seq_ids.begin(), last.seq_ids.end(), id);
    return it == last.seq_ids.end() ? 0 : last.num_scheduled[it - last.seq_ids.begin()];
  }
  const Ledger& ledger(SeqId id) const { return core.find(id)->ledger; }

  void check() const {
    const BlockPool& pool = core.allocator().pool();
    CHECK_EQ(pool.num_free() + pool.num_used(), pool.num_blocks());
    std::map<BlockId, std::int32_t> refs;
    std::vector<SeqId> holding = core.running_ids();
    for (const SeqId id : core.prompted_ids()) holding.push_back(id);
    for (const SeqId id : core.waiting_ids()) {
      check_outputs(*core.find(id));
      if (core.config().limits.phased() && core.find(id)->started()) {
        holding.push_back(id);
      } else {
        for (const auto& blocks : core.find(id)->blocks) CHECK(blocks.empty());
      }
    }
    for (const SeqId id : holding) {
      const Sequence& seq = *core.find(id);
      for (const auto& blocks : seq.blocks)
        for (const BlockId block : blocks) refs[block] += block != kNullBlock;
      check_ledger(seq);
      check_outputs(seq);
    }
    std::int32_t used = 0;
    for (BlockId b = 1; b <= pool.num_blocks(); ++b) {
      CHECK_EQ(pool.ref_count(b), refs.count(b) ? refs[b] : 0);
      used += refs.count(b) && refs[b] > 0;
    }
    CHECK_EQ(used, pool.num_used());
    CHECK_EQ(core.num_running() + core.num_prompted() + core.num_waiting(), core.num_unfinished());
  }

  Scheduler core;
  std::deque<StepPlan> in_flight;
  StepPlan last;

 private:
  // Later steps in flight were planned as if every draft stood; the device corrects their positions, so do we.
  void move_back(SeqId id, std::int32_t rejected) {
    for (StepPlan& plan : in_flight)
      for (std::size_t i = 0; i < plan.seq_ids.size(); ++i)
        if (plan.seq_ids[i] == id) plan.num_computed[i] -= rejected;
  }
  // Whatever was delivered, dropped or recomputed: no output token is lost, doubled or out of place.
  void check_outputs(const Sequence& seq) const {
    for (std::int32_t p = seq.prompt_len(); p < static_cast<std::int32_t>(seq.tokens.size()); ++p)
      CHECK_EQ(seq.tokens[p], token_at(seq.id(), p));
  }
  void check_ledger(const Sequence& seq) const {
    const Ledger& ledger = seq.ledger;
    CHECK_EQ(ledger.num_tokens(), static_cast<std::int32_t>(seq.tokens.size()));
    CHECK(ledger.num_stale() == 0 && ledger.num_computed() < core.config().limits.max_model_len);
    CHECK(ledger.num_valid() >= 0 && ledger.num_valid() < ledger.num_tokens());
    const std::int32_t size = core.allocator().block_size();
    for (std::size_t g = 0; g < seq.blocks.size(); ++g) {
      CHECK(static_cast<std::int32_t>(seq.blocks[g].size()) * size >= ledger.num_computed());
      const GroupSpec& group = core.config().groups[g];
      const std::int32_t seen = group.kind == GroupKind::kFull ? 0 : std::max(0, ledger.num_valid() - group.window + 1);
      for (std::int32_t p = seen; p < ledger.num_computed(); ++p) CHECK(seq.blocks[g][p / size] != kNullBlock);
    }
  }
};

}  // namespace headrace::testing
