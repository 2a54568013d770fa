// What planners share.
#include "core/planner.h"

namespace headrace::core {

std::int32_t running_need(const Sequence& seq, const Limits& limits) {
  const Ledger& ledger = seq.ledger;
  const bool may_be_done = ledger.num_promised() > 0 &&
                           ledger.num_tokens() + ledger.num_promised() >= seq.length_limit(limits.max_model_len);
  return may_be_done ? 0 : ledger.need(seq.num_drafts());
}

void trim_drafts(PlanContext& context) {
  if (!context.cost.known()) return;
  std::vector<Sequence*> decoding;
  std::vector<VerifyRow> rows;
  for (Sequence* seq : context.queues.running()) {
    const std::int32_t need = running_need(*seq, context.limits);
    if (need != 1 + seq->num_drafts()) continue;  // still in its prefill, or at its end
    decoding.push_back(seq);
    rows.push_back({seq->num_drafts(), seq->confidences});
  }
  const VerifyChoice choice = choose_drafts(rows, context.cost, context.limits.token_budget);
  for (std::size_t i = 0; i < decoding.size(); ++i) decoding[i]->drafts.resize(choice.drafts[i]);
}

bool passed_over(PlanContext& context, const Sequence& seq) {
  if (!seq.spec.ready) context.plan.note(seq.id(), Note::kNotReady, 0);
  if (!seq.drained()) context.plan.note(seq.id(), Note::kNotDrained, seq.ledger.num_stale());
  return !seq.spec.ready || !seq.drained();
}

std::int32_t missing_for_all(const PlanContext& context, const Sequence& seq, const Hit& hit) {
  const Allocator& allocator = context.allocator;
  std::int32_t held = 0;
  for (const auto& blocks : hit.blocks)
    for (const BlockId block : blocks) held += block != kNullBlock && !allocator.pool().is_free(block);
  const std::int64_t peak = allocator.peak_blocks(seq.ledger.num_tokens(), context.limits.most_in_flight());
  return static_cast<std::int32_t>(peak - held - (allocator.pool().num_free() - context.limits.watermark_blocks));
}

}  // namespace headrace::core
