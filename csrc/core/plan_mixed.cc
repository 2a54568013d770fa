// The MIXED planner: one token budget, no phases.
#include <algorithm>

#include "core/planner.h"

namespace headrace::core {
namespace {

// The tokens a sequence may take now, and what limited them.
Slice clip_need(Sequence& seq, std::int32_t need, const Limits& limits, const Budgets& left) {
  Slice slice{&seq, need, seq.num_drafts(), Clip::kWhole};
  const auto limit = [&](std::int32_t most, Clip reason) {
    if (slice.q <= most) return;
    slice.q = std::max(0, most);
    slice.clip = reason;
  };
  if (limits.long_prefill_threshold > 0) limit(limits.long_prefill_threshold, Clip::kLongPrefill);
  limit(left.tokens, Clip::kTokenBudget);
  limit(left.inputs - limits.draft_slots, Clip::kInputBudget);
  // The last token a sequence may have is never an input; drafts beyond it could not be emitted.
  limit(seq.length_limit(limits.max_model_len) - 1 - seq.ledger.num_computed(), Clip::kModelLength);
  return slice;
}

void charge(Budgets& left, const Slice& slice, const Limits& limits) {
  left.tokens -= slice.q;
  left.inputs -= slice.q + limits.draft_slots;
}

// Preempts the victim; if it was already in this step, its budgets come back. Returns how many running sequences
// before `position` went, so that the caller's place stays right.
std::size_t give_way(PlanContext& context, Decision& decision, Sequence* victim, std::size_t position) {
  const auto& running = context.queues.running();
  const auto place = static_cast<std::size_t>(std::find(running.begin(), running.end(), victim) - running.begin());
  const auto slice =
      std::find_if(decision.slices.begin(), decision.slices.end(), [&](const Slice& s) { return s.seq == victim; });
  if (slice != decision.slices.end()) {
    decision.left.tokens += slice->q;
    decision.left.inputs += slice->q + context.limits.draft_slots;
    decision.slices.erase(slice);
  }
  context.preempt(*victim, StaleMode::kDeliver);
  decision.preempted = true;
  return place < position ? 1 : 0;
}

// Blocks for a running sequence, at others' expense if need be. False when it had to give way itself.
bool make_room(PlanContext& context, Decision& decision, Slice& slice, std::size_t& position) {
  while (context.allocator.allocate(*slice.seq, slice.q, context.limits.lookahead, nullptr, 0) > 0) {
    Sequence* victim = context.queues.victim();
    position -= give_way(context, decision, victim, position);
    if (victim == slice.seq) return false;
  }
  return true;
}

void plan_running(PlanContext& context, Decision& decision) {
  std::size_t position = 0;
  while (position < context.queues.running().size() && decision.left.tokens > 0) {
    Sequence* seq = context.queues.running()[position];
    const std::int32_t need = running_need(*seq, context.limits);
    Slice slice = clip_need(*seq, need, context.limits, decision.left);
    if (slice.q <= 0) {
      if (need > 0) context.plan.note(seq->id(), Note::kNoBudget, need);
      ++position;
      continue;
    }
    if (!make_room(context, decision, slice, position)) return;
    slice.drafts = std::max(0, slice.q - (need - slice.drafts));
    charge(decision.left, slice, context.limits);
    decision.slices.push_back(slice);
    ++position;
  }
}

// Admits one waiting sequence. False when it blocks those behind it.
bool admit(PlanContext& context, Decision& decision, Sequence* seq) {
  const Limits& limits = context.limits;
  const Hit hit = context.allocator.find_hit(*seq);
  const std::int32_t need = seq->ledger.num_tokens() - hit.num_tokens;
  Slice slice = clip_need(*seq, need, limits, decision.left);
  slice.drafts = 0;
  if (!limits.chunked_prefill && slice.q < need) {
    context.plan.note(seq->id(), need > limits.token_budget ? Note::kTooLongForStep : Note::kNoBudget, need);
    return false;
  }
  if (slice.q <= 0) {
    context.plan.note(seq->id(), Note::kNoBudget, need);
    return false;
  }
  // An idle engine admits whatever its pool can hold; the reserve protects running sequences only.
  const bool alone = context.queues.running().empty();
  std::int32_t missing = 0;
  if (limits.full_sequence_must_fit && !alone) missing = missing_for_all(context, *seq, hit);
  if (missing <= 0)
    missing = context.allocator.allocate(*seq, slice.q, limits.lookahead, &hit, alone ? 0 : limits.watermark_blocks);
  if (missing > 0) {
    context.plan.note(seq->id(), Note::kNoBlocks, missing);
    return false;
  }
  seq->ledger.start_at(hit.num_tokens);
  if (!seq->admitted_before) seq->num_cached_tokens = hit.num_tokens;
  seq->admitted_before = true;
  if (hit.num_tokens > 0) context.plan.note(seq->id(), Note::kHit, hit.num_tokens);
  context.queues.admit(seq);
  charge(decision.left, slice, limits);
  decision.slices.push_back(slice);
  context.settle(slice);
  return true;
}

// One place of the waiting queue. False when nobody behind it can be served in this step.
bool serve_waiting(PlanContext& context, Decision& decision, Sequence* seq) {
  const auto left = static_cast<std::int32_t>(context.queues.num_waiting());
  if (static_cast<std::int32_t>(context.queues.running().size()) >= context.limits.max_seqs) {
    context.plan.note(-1, Note::kNoSlot, left);
    return false;
  }
  if (decision.left.tokens <= 0) {
    context.plan.note(-1, Note::kNoBudget, left);
    return false;
  }
  return passed_over(context, *seq) || admit(context, decision, seq);
}

}  // namespace

Decision plan_mixed(PlanContext& context) {
  Decision decision;
  decision.left = {context.limits.token_budget, context.limits.input_budget};
  trim_drafts(context);
  plan_running(context, decision);
  for (const Slice& slice : decision.slices) context.settle(slice);
  if (decision.preempted) return decision;  // what was just taken away must not be handed to newcomers
  context.queues.visit_waiting([&](Sequence* seq) { return serve_waiting(context, decision, seq); });
  return decision;
}

}  // namespace headrace::core
