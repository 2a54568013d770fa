// The DECODE planner: one row per running sequence and the drafts worth verifying. Prefills nothing; a sequence that
// came without the last of its KV computes that first.
#include <algorithm>
#include <utility>

#include "core/planner.h"

namespace headrace::core {
namespace {

// A forked sequence first gets a last block of its own. False when there is none.
bool own_last_block(PlanContext& context, Sequence& seq) {
  if (!seq.shares_last_block) return true;
  const std::size_t before = context.plan.clone_blocks.size();
  const std::int32_t missing = context.allocator.clone_last(seq, context.plan.clone_blocks);
  const auto cloned = static_cast<std::int32_t>((context.plan.clone_blocks.size() - before) / 2);
  context.plan.note(seq.id(), missing > 0 ? Note::kNoBlocks : Note::kCloned, missing > 0 ? missing : cloned);
  return missing == 0;
}

// When nobody runs, forked sequences alone may hold the block that each of them lacks. The last of them goes back.
bool give_way_to(PlanContext& context, const Sequence& seq) {
  if (!context.queues.running().empty() || context.queues.prompted().back() == &seq) return false;
  context.preempt(*context.queues.prompted().back(), StaleMode::kDeliver);
  return true;
}

void admit_prompted(PlanContext& context) {
  const std::vector<Sequence*> prompted = context.queues.prompted();
  for (Sequence* seq : prompted) {
    if (context.queues.running().size() >= static_cast<std::size_t>(context.limits.max_seqs)) {
      context.plan.note(-1, Note::kNoSlot, static_cast<std::int32_t>(context.queues.prompted().size()));
      return;
    }
    if (seq->status != Status::kPrompted || passed_over(context, *seq)) continue;
    while (!own_last_block(context, *seq) && give_way_to(context, *seq)) {
    }
    if (!seq->shares_last_block) context.queues.admit(seq);
  }
}

std::vector<Sequence*> longest_output_first(const Queues& queues) {
  std::vector<Sequence*> order = queues.running();
  std::stable_sort(order.begin(), order.end(),
                   [](const Sequence* a, const Sequence* b) { return a->num_outputs() > b->num_outputs(); });
  return order;
}

// The row of a sequence and its drafts, as far as its length allows; q is 0 when it needs nothing. One that lacks KV
// takes more rows, out of the `spare` ones.
Slice whole_slice(Sequence& seq, const Limits& limits, std::int32_t* spare) {
  const std::int32_t need = running_need(seq, limits), lacking = std::max(0, need - seq.num_drafts() - 1);
  if (lacking > *spare) return {&seq, 1 + std::exchange(*spare, 0), 0, Clip::kTokenBudget};
  *spare -= lacking;
  // The last token a sequence may have is never an input; drafts beyond it could not be emitted.
  const std::int32_t most = seq.length_limit(limits.max_model_len) - 1 - seq.ledger.num_computed();
  const std::int32_t q = std::max(0, std::min(need, most));
  return {&seq, q, std::max(0, q - (need - seq.num_drafts())), q < need ? Clip::kModelLength : Clip::kWhole};
}

// Who gets a row, shortest output first. Blocks for it are taken from those with the longest output, who were not
// served yet; a sequence nobody can give way to gives way itself. Returned longest output first.
std::vector<Slice> serve(PlanContext& context, bool* preempted) {
  const std::vector<Sequence*> order = longest_output_first(context.queues);
  const Limits& limits = context.limits;
  const std::size_t rows = std::min(limits.token_budget, limits.input_budget / (1 + limits.draft_slots));
  auto spare = static_cast<std::int32_t>(rows - std::min(rows, order.size()));
  std::vector<Slice> served;
  std::size_t head = 0;  // those before it gave way
  for (std::size_t i = order.size(); i > head && served.size() < rows; --i) {
    const Slice slice = whole_slice(*order[i - 1], limits, &spare);
    if (slice.q == 0) continue;
    while (i > head && context.allocator.allocate(*slice.seq, slice.q, limits.lookahead, nullptr, 0) > 0) {
      context.preempt(*order[head++], StaleMode::kDeliver);
      *preempted = true;
    }
    if (i > head) served.push_back(slice);
  }
  std::reverse(served.begin(), served.end());
  return served;
}

std::int32_t total_length(const Sequence& seq) { return seq.ledger.num_tokens() + seq.ledger.num_promised(); }

// How many of its drafts each slice keeps.
void verify(PlanContext& context, std::vector<Slice>& slices) {
  std::vector<VerifyRow> rows;
  for (const Slice& slice : slices) rows.push_back({slice.drafts, slice.seq->confidences});
  const std::int32_t num_seqs = static_cast<std::int32_t>(slices.size());
  const std::int32_t inputs = context.limits.input_budget - context.limits.draft_slots * num_seqs;
  std::int32_t lacking = 0;  // rows that neither decode nor verify
  for (const Slice& slice : slices) lacking += slice.q - slice.drafts - 1;
  const std::int32_t most = std::min(context.limits.token_budget, inputs) - lacking;
  const VerifyChoice choice = choose_drafts(rows, context.cost, most);
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const std::int32_t dropped = slices[i].drafts - choice.drafts[i];
    slices[i].q -= dropped, slices[i].drafts -= dropped;
    if (dropped > 0) slices[i].clip = Clip::kVerification;
  }
}

}  // namespace

Decision plan_decode(PlanContext& context) {
  Decision decision;
  decision.left = {context.limits.token_budget, context.limits.input_budget};
  admit_prompted(context);
  decision.slices = serve(context, &decision.preempted);
  // Long rows first: attention over them takes longest.
  std::stable_sort(decision.slices.begin(), decision.slices.end(),
                   [](const Slice& a, const Slice& b) { return total_length(*a.seq) > total_length(*b.seq); });
  verify(context, decision.slices);
  for (const Slice& slice : decision.slices) {
    decision.left.tokens -= slice.q;
    decision.left.inputs -= slice.q + context.limits.draft_slots;
    context.settle(slice);
  }
  return decision;
}

}  // namespace headrace::core
