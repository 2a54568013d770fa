// What planners share.
#include "core/planner.h"

namespace headrace::core {

std::int32_t running_need(const Sequence& seq, const Limits& limits) {
  const Ledger& ledger = seq.ledger;
  const bool may_be_done = ledger.num_promised() > 0 &&
                           ledger.num_tokens() + ledger.num_promised() >= seq.length_limit(limits.max_model_len);
  return may_be_done ? 0 : ledger.need(seq.num_drafts());
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
