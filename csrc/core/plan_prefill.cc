// The PREFILL planner: prompts in slices, head of waiting first, each slice as long as every limit allows.
#include <algorithm>

#include "core/planner.h"

namespace headrace::core {
namespace {

// A slice being cut: limits are applied one after another, the last that bit is the reason.
struct Cut {
  std::int64_t q;
  Clip clip = Clip::kWhole;
  bool short_of_blocks = false;

  void at_most(std::int64_t most, Clip reason) {
    if (q <= most) return;
    q = std::max<std::int64_t>(0, most);
    clip = reason;
  }
};

// The largest q of at most `most` with yes(q), 0 if none; yes must not turn true again once it is false.
template <typename Yes>
std::int32_t largest(std::int64_t most, Yes yes) {
  auto low = std::int32_t{0}, high = static_cast<std::int32_t>(most);
  while (low < high) {
    const std::int32_t middle = low + (high - low + 1) / 2;
    yes(middle) ? low = middle : high = middle - 1;
  }
  return low;
}

void cut_at_checkpoint(Cut& cut, const Sequence& seq, std::int32_t start) {
  for (const std::int32_t position : seq.spec.checkpoints)
    if (position > start) return cut.at_most(position - start, Clip::kCheckpoint);
}

// An item that does not fit cuts the slice just before it; of one begun by a hit the rest is as indivisible.
void cut_before_media(Cut& cut, const Sequence& seq, std::int32_t start) {
  for (const MediaItem& item : seq.spec.keys.media) {
    const std::int64_t end = start + cut.q;
    if (item.start < end && end < std::int64_t{item.start} + item.length)
      return cut.at_most(item.start - start, Clip::kMedia);
  }
}

// How a waiting sequence would enter the step.
struct Entry {
  Hit hit;
  bool fresh = true;  // takes the hit; else it goes on where it was
  bool whole_must_fit = false;
  std::int32_t reserve = 0;  // blocks that must stay free

  const Hit* taken() const { return fresh ? &hit : nullptr; }
  std::int32_t start(const Sequence& seq) const { return fresh ? hit.num_tokens : seq.ledger.num_computed(); }
};

class Prefill {
 public:
  explicit Prefill(PlanContext& context) : context_(context), limits_(context.limits), queues_(context.queues) {
    decision_.left = {limits_.token_budget, limits_.input_budget};
    if (limits_.max_sum_keys > 0) decision_.left.keys = limits_.max_sum_keys;
    if (context.plan.time_budget_ns > 0)
      decision_.left.time_ns = static_cast<double>(context.plan.time_budget_ns) - limits_.prefill_cost.fixed_ns;
    num_occupied_ = queues_.running().size() + queues_.prompted().size();
    for (const Sequence* seq : queues_.waiting()) num_occupied_ += seq->started();
  }

  Decision plan() {
    queues_.visit_waiting([&](Sequence* seq) { return decision_.left.tokens > 0 && serve(*seq); });
    return std::move(decision_);
  }

  // The first sequence that could be served decides: whatever stops it stops those behind it.
  bool possible(const std::function<bool(const Sequence&)>& dead) {
    for (Sequence* seq : queues_.waiting()) {
      if (!seq->spec.ready || !seq->drained() || dead(*seq)) continue;
      if (!has_slot(*seq)) return false;
      const Cut slice = cut(*seq, entry(*seq));
      return slice.q > 0 || (slice.short_of_blocks && last_started_behind(*seq));
    }
    return false;
  }

 private:
  bool first() const { return decision_.slices.empty(); }
  bool has_slot(const Sequence& seq) const {
    return seq.started() || num_occupied_ < static_cast<std::size_t>(limits_.max_seqs);
  }

  // An idle engine admits whatever its pool can hold; reserves protect the others only.
  Entry entry(Sequence& seq) {
    Entry out;
    out.fresh = !seq.started();
    const bool protect = out.fresh && num_occupied_ > 0;
    out.whole_must_fit = protect && limits_.full_sequence_must_fit;
    out.reserve = protect ? limits_.watermark_blocks : 0;
    if (out.fresh) out.hit = context_.allocator.find_hit(seq);
    return out;
  }

  void cut_to_budgets(Cut& cut, std::int32_t start) const {
    const Budgets& left = decision_.left;
    if (limits_.long_prefill_threshold > 0) cut.at_most(limits_.long_prefill_threshold, Clip::kLongPrefill);
    cut.at_most(left.tokens / limits_.quantum() * limits_.quantum(), Clip::kTokenBudget);
    cut.at_most(left.inputs - limits_.draft_slots, Clip::kInputBudget);
    cut.at_most(left.keys - start, Clip::kKeys);
  }

  // A time budget makes steps shorter; it must never stop prompts for good, so the first slice has a least length.
  void cut_to_time(Cut& cut, std::int32_t start) const {
    const auto fits = [&](std::int32_t q) { return limits_.prefill_cost.slice(q, start) <= decision_.left.time_ns; };
    if (fits(static_cast<std::int32_t>(cut.q))) return;
    const std::int32_t solved = largest(cut.q, fits) / limits_.quantum() * limits_.quantum();
    cut.at_most(first() ? std::max({solved, limits_.quantum(), limits_.min_slice}) : solved, Clip::kTime);
  }

  void cut_to_blocks(Cut& cut, const Sequence& seq, const Entry& entry) const {
    const std::int64_t before = cut.q;
    const auto fits = [&](std::int32_t q) {
      return context_.allocator.missing(seq, q, limits_.lookahead, entry.taken(), entry.reserve) == 0;
    };
    const bool refused = entry.whole_must_fit && missing_for_all(context_, seq, entry.hit) > 0;
    cut.at_most(refused ? 0 : largest(cut.q, fits), Clip::kBlocks);
    cut.short_of_blocks = cut.q < before;
  }

  Cut attempt(const Sequence& seq, const Entry& entry, bool timed) const {
    const std::int32_t start = entry.start(seq), need = seq.ledger.num_tokens() - start;
    Cut cut{need};
    cut_to_budgets(cut, start);
    cut_at_checkpoint(cut, seq, start);
    if (timed) cut_to_time(cut, start);
    cut_to_blocks(cut, seq, entry);
    cut_before_media(cut, seq, start);
    const bool wanted = cut.clip == Clip::kCheckpoint || (limits_.chunked_prefill && cut.clip == Clip::kMedia);
    const std::int32_t least = limits_.chunked_prefill ? limits_.min_slice : need;
    if (!wanted && cut.q < std::min(need, least)) cut.q = 0;
    return cut;
  }

  // The slice this sequence would get now; q is 0 when there is none.
  Cut cut(const Sequence& seq, const Entry& entry) const {
    const Cut timed = attempt(seq, entry, true);
    // Time for a part of a media item only: it cannot be divided, and must come some day.
    return timed.q == 0 && first() ? attempt(seq, entry, false) : timed;
  }

  // While nothing decodes, half-prefilled sequences behind this one may hold for ever what it lacks.
  Sequence* last_started_behind(const Sequence& seq) const {
    if (!first() || !queues_.running().empty() || !queues_.prompted().empty()) return nullptr;
    Sequence* last = nullptr;
    for (Sequence* other : queues_.waiting())
      if (other != &seq && other->started()) last = other;
    return last;
  }

  // One place of the waiting queue. False when nobody behind it can be served in this step.
  bool serve(Sequence& seq) {
    if (passed_over(context_, seq)) return true;
    if (!has_slot(seq)) {
      context_.plan.note(-1, Note::kNoSlot, static_cast<std::int32_t>(queues_.num_waiting()));
      return false;
    }
    Entry in = entry(seq);
    Cut slice = cut(seq, in);
    for (Sequence* other; slice.q == 0 && slice.short_of_blocks && (other = last_started_behind(seq));) {
      context_.preempt(*other, StaleMode::kDeliver);  // keeps its place in waiting
      --num_occupied_;
      in = entry(seq), slice = cut(seq, in);
    }
    if (slice.q == 0) {
      const Note note = slice.short_of_blocks ? Note::kNoBlocks : Note::kNoBudget;
      context_.plan.note(seq.id(), note, refusal(seq, in, slice));
      return false;
    }
    take(seq, in, slice);
    return limits_.role != Role::kNormal || seq.status == Status::kPrompted;  // there a chunked slice ends the step
  }

  // Blocks missing for the least slice, or tokens needed.
  std::int32_t refusal(const Sequence& seq, const Entry& entry, const Cut& cut) const {
    const std::int32_t need = seq.ledger.num_tokens() - entry.start(seq);
    if (!cut.short_of_blocks) return need;
    if (entry.whole_must_fit) return missing_for_all(context_, seq, entry.hit);
    const std::int32_t least = std::min(need, limits_.chunked_prefill ? limits_.min_slice : need);
    return context_.allocator.missing(seq, least, limits_.lookahead, entry.taken(), entry.reserve);
  }

  void take(Sequence& seq, const Entry& entry, const Cut& cut) {
    const Slice slice{&seq, static_cast<std::int32_t>(cut.q), 0, cut.clip};
    context_.allocator.allocate(seq, slice.q, limits_.lookahead, entry.taken(), entry.reserve);
    if (entry.fresh) enter(seq, entry.hit);
    charge(slice, seq.ledger.num_computed());
    decision_.slices.push_back(slice);
    context_.settle(slice);
    if (seq.in_flight.back().promised > 0) queues_.push_prompted(&seq);  // the slice reached its end
  }

  void enter(Sequence& seq, const Hit& hit) {
    seq.ledger.start_at(hit.num_tokens);
    if (!seq.admitted_before) seq.num_cached_tokens = hit.num_tokens;
    seq.admitted_before = true;
    if (hit.num_tokens > 0) context_.plan.note(seq.id(), Note::kHit, hit.num_tokens);
    ++num_occupied_;
  }

  // Context-parallel ranks get equal shares, so a slice takes the room of its padded length.
  void charge(const Slice& slice, std::int32_t start) {
    Budgets& left = decision_.left;
    left.tokens -= ceil_div(slice.q, limits_.quantum()) * limits_.quantum();
    left.inputs -= slice.q + limits_.draft_slots;
    if (limits_.max_sum_keys > 0) left.keys -= start + slice.q;
    left.time_ns -= limits_.prefill_cost.slice(slice.q, start);
  }

  PlanContext& context_;
  const Limits& limits_;
  Queues& queues_;
  Decision decision_;
  std::size_t num_occupied_ = 0;  // sequences that hold blocks
};

}  // namespace

Decision plan_prefill(PlanContext& context) { return Prefill(context).plan(); }

bool prefill_possible(PlanContext& context, const std::function<bool(const Sequence&)>& dead) {
  return Prefill(context).possible(dead);
}

}  // namespace headrace::core
