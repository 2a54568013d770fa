// The MIXED planner: one token budget, no phases.
#include <algorithm>

#include "core/planner.h"

namespace headrace::core {
namespace {

// Still computing what was there before it generates: it needs more than one token and its drafts.
bool in_prefill(const Sequence& seq, const Limits& limits) { return running_need(seq, limits) > 1 + seq.num_drafts(); }

// Tokens that a step has for a prompt when no other prompt is before it.
std::int32_t room_beside_generation(const PlanContext& context) {
  const Limits& limits = context.limits;
  Budgets left{limits.token_budget, limits.input_budget};
  for (const Sequence* seq : context.queues.running()) {
    if (in_prefill(*seq, limits)) continue;
    const std::int32_t rows = running_need(*seq, limits);
    left.tokens -= rows, left.inputs -= rows > 0 ? rows + limits.draft_slots : 0;
  }
  const std::int32_t room = std::min(left.tokens, left.inputs - limits.draft_slots);
  return limits.long_prefill_threshold > 0 ? std::min(room, limits.long_prefill_threshold) : room;
}

// A slice ends before a media item that it would hold a part of, or that waits for a step with room, unless those who
// generate leave too little for it in any step: then it is cut, for a prompt must not wait for them.
void cut_before_media(const PlanContext& context, Slice& slice, std::int32_t start) {
  const std::int64_t end = std::int64_t{start} + slice.q;
  for (const MediaItem& item : slice.seq->spec.keys.media) {
    const std::int64_t first = std::max(item.start, start), behind = std::int64_t{item.start} + item.length;
    if (first >= end) return;
    if (behind <= end) continue;
    if (behind - first > room_beside_generation(context)) return;
    slice.q = static_cast<std::int32_t>(first - start), slice.clip = Clip::kMedia;
    return;
  }
}

// The tokens a sequence may take now, after `start`, and what limited them.
Slice clip_need(const PlanContext& context, Sequence& seq, std::int32_t need, std::int32_t start, const Budgets& left) {
  const Limits& limits = context.limits;
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
  if (slice.q < need) cut_before_media(context, slice, start);
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

// One running sequence's share of the step. False when it had to give way itself.
bool plan_one(PlanContext& context, Decision& decision, Sequence* seq, std::size_t& position) {
  const std::int32_t need = running_need(*seq, context.limits);
  Slice slice = clip_need(context, *seq, need, seq->ledger.num_computed(), decision.left);
  if (slice.q <= 0) {
    if (need > 0) context.plan.note(seq->id(), Note::kNoBudget, need);
    return true;
  }
  if (!make_room(context, decision, slice, position)) return false;
  slice.drafts = std::max(0, slice.q - (need - slice.drafts));
  charge(decision.left, slice, context.limits);
  decision.slices.push_back(slice);
  return true;
}

// Running sequences in order of admission, as far as `wanted`. False when one had to give way itself.
template <typename Wanted>
bool plan_running(PlanContext& context, Decision& decision, Wanted wanted) {
  for (std::size_t position = 0; position < context.queues.running().size() && decision.left.tokens > 0; ++position) {
    Sequence* seq = context.queues.running()[position];
    if (wanted(*seq) && !plan_one(context, decision, seq, position)) return false;
  }
  return true;
}

// Makes planned slices part of the step, behind those that are already: slices stand in the order they were settled.
void settle_planned(PlanContext& context, Decision& decision) {
  auto& slices = decision.slices;
  const auto open = std::stable_partition(slices.begin(), slices.end(), [](const Slice& s) { return s.settled; });
  for (auto slice = open; slice != slices.end(); ++slice) {
    context.settle(*slice);
    slice->settled = true;
  }
}

// Admits one waiting sequence. False when it blocks those behind it.
bool admit(PlanContext& context, Decision& decision, Sequence* seq) {
  const Limits& limits = context.limits;
  const Hit hit = context.allocator.find_hit(*seq);
  const std::int32_t need = seq->ledger.num_tokens() - hit.num_tokens;
  Slice slice = clip_need(context, *seq, need, hit.num_tokens, decision.left);
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
  context.settle(slice);
  slice.settled = true;
  decision.slices.push_back(slice);
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

bool before(const Sequence& one, const Sequence& other) { return Queues::rank(one) < Queues::rank(other); }

// Running sequences in order of admission; then, if nothing was taken away, the waiting ones.
void plan_first_come(PlanContext& context, Decision& decision) {
  plan_running(context, decision, [](const Sequence&) { return true; });
  settle_planned(context, decision);
  if (decision.preempted) return;  // what was just taken away must not be handed to newcomers
  context.queues.visit_waiting([&](Sequence* seq) { return serve_waiting(context, decision, seq); });
}

// Whoever generates; then prompts by rank, whether running or waiting: a long prompt of low rank that was admitted in
// a quiet moment must not keep a better one waiting for its end. A victim ranks behind the prompt that needs room, and
// so behind everyone admitted before it: what has been settled is never taken back.
void plan_by_rank(PlanContext& context, Decision& decision) {
  const Limits& limits = context.limits;
  bool room = plan_running(context, decision, [&](const Sequence& seq) { return !in_prefill(seq, limits); });
  std::vector<Sequence*> prompts;
  for (Sequence* seq : context.queues.running())
    if (in_prefill(*seq, limits)) prompts.push_back(seq);
  std::stable_sort(prompts.begin(), prompts.end(), [](auto* one, auto* other) { return before(*one, *other); });
  const std::vector<Sequence*> waiting = context.queues.waiting();
  std::size_t next = 0;
  bool open = true;
  const auto serve_before = [&](const Sequence* limit) {
    while (open && !decision.preempted && next < waiting.size() && (!limit || before(*waiting[next], *limit)))
      open = serve_waiting(context, decision, waiting[next++]);
  };
  std::size_t anywhere = 0;
  for (Sequence* seq : prompts) {
    if (!room || decision.left.tokens <= 0) break;
    serve_before(seq);
    if (seq->status == Status::kRunning) room = plan_one(context, decision, seq, anywhere);
  }
  settle_planned(context, decision);
  serve_before(nullptr);
}

}  // namespace

Decision plan_mixed(PlanContext& context) {
  Decision decision;
  decision.left = {context.limits.token_budget, context.limits.input_budget};
  trim_drafts(context);
  if (context.queues.by_priority())
    plan_by_rank(context, decision);
  else
    plan_first_come(context, decision);
  return decision;
}

}  // namespace headrace::core
