// What only engines that plan prompts and decoding apart need: verdicts on sequences that can never be served, forks,
// sequences handed over from elsewhere, and the cost of verifying drafts.
#include <algorithm>

#include "core/scheduler.h"

namespace headrace::core {
namespace {

// Tokens of the longest media item; an item is never cut.
std::int64_t longest_item(const SequenceSpec& spec) {
  std::int64_t longest = 0;
  for (const MediaItem& item : spec.keys.media) longest = std::max<std::int64_t>(longest, item.length);
  return longest;
}

}  // namespace

std::vector<SeqId> Scheduler::prompted_ids() const {
  std::vector<SeqId> out;
  for (const Sequence* seq : queues_.prompted()) out.push_back(seq->id());
  return out;
}

// Everyone who holds blocks, in the order of their progress.
std::vector<Sequence*> Scheduler::holding() const {
  std::vector<Sequence*> out = queues_.running();
  out.insert(out.end(), queues_.prompted().begin(), queues_.prompted().end());
  for (Sequence* seq : queues_.waiting())
    if (seq->started()) out.push_back(seq);
  return out;
}

// Why a waiting sequence can never be served, if so. Asked again as it grows: one that was preempted must be
// recomputed whole.
std::optional<Ignored> Scheduler::verdict(const Sequence& seq) const {
  const Limits& limits = config_.limits;
  if (limits.stop_preempted && seq.num_preemptions > 0) return Ignored::kPreempted;
  if (seq.prompt_len() >= limits.max_model_len) return Ignored::kTooLong;
  const std::int32_t limit = limits.role == Role::kPrompt ? seq.prompt_len() : seq.length_limit(limits.max_model_len);
  if (allocator_.peak_blocks(limit + limits.lookahead, limits.most_in_flight()) > allocator_.pool().num_blocks())
    return Ignored::kNeverFits;
  if (limits.role == Role::kCompletion) return std::nullopt;  // it is never prefilled here
  const bool fits = (limits.max_sum_keys == 0 || seq.ledger.num_tokens() <= limits.max_sum_keys) &&
                    (limits.chunked_prefill || seq.ledger.num_tokens() <= limits.longest_slice()) &&
                    longest_item(seq.spec) <= limits.longest_slice();
  return fits ? std::nullopt : std::optional(Ignored::kNeverFits);
}

// Anywhere in waiting, not only at its head: the rank whose head can never run would vote against every prompt step.
void Scheduler::sweep() {
  if (!config_.limits.phased()) return;
  for (Sequence* seq : queues_.waiting()) {
    const std::optional<Ignored> reason = verdict(*seq);
    if (!reason) continue;
    ignored_.emplace_back(seq->id(), *reason);
    retire(*seq);
  }
}

std::vector<std::pair<SeqId, Ignored>> Scheduler::take_ignored() { return std::exchange(ignored_, {}); }

bool Scheduler::prefill_possible() {
  const Role role = config_.limits.role;
  if (role != Role::kNormal && role != Role::kPrompt) return false;
  StepPlan plan;
  Step step{kNoStep, {}, {}, {}};
  PlanContext context = this->context(plan, step);
  return core::prefill_possible(context, [this](const Sequence& seq) { return verdict(seq).has_value(); });
}

void Scheduler::fork(SeqId parent_id, SequenceSpec spec) {
  if (!config_.limits.phased()) throw InvalidField("parent", "only engines that plan prompts apart can fork");
  const Sequence* parent = find(parent_id);
  if (!parent || parent->status == Status::kWaiting || !parent->in_flight.empty() || parent->shares_last_block)
    throw InvalidField("parent", "must be prompted or running, have its own blocks and nothing in flight");
  spec.keys = parent->spec.keys;
  check(spec);
  const std::int32_t computed = parent->ledger.num_computed();
  std::vector<Token> tokens = spec.prompt;
  tokens.insert(tokens.end(), spec.outputs.begin(), spec.outputs.end());
  const auto shared = static_cast<std::int32_t>(tokens.size()) - 1;
  if (shared < 1 || shared < computed - 1 || shared > computed ||
      !std::equal(tokens.begin(), tokens.end() - 1, parent->tokens.begin()))
    throw InvalidField("prompt",
                       "prompt and outputs must be the parent's computed tokens, or all but one, and one more");
  if (!allocator_.covers(*parent, shared)) throw InvalidField("parent", "has given back blocks behind its windows");
  Sequence& child = enlist(std::move(spec));
  allocator_.share(*parent, child, shared);
  child.ledger.start_at(shared);
  child.arrived_computed = child.admitted_before = true;
  queues_.push_prompted(&child);
}

// Blocks that a sequence will hold at most. One that came with its KV holds all of them until its first step, whatever
// its windows have passed.
std::int64_t Scheduler::most_blocks(const Sequence& seq) const {
  const Limits& limits = config_.limits;
  const std::int32_t end = seq.length_limit(limits.max_model_len) + limits.lookahead;
  const std::int64_t peak = allocator_.peak_blocks(end, limits.most_in_flight());
  if (seq.status == Status::kRunning) return peak;
  return std::max(peak, std::int64_t{allocator_.num_groups()} *
                            ceil_div(seq.ledger.num_tokens() + limits.lookahead, allocator_.block_size()));
}

// Whether `seq` and everyone who holds blocks can all run to their ends: here nobody is recomputed, so whoever would
// have to give way would be lost.
bool Scheduler::lasts_beside_others(const Sequence& seq) const {
  const std::vector<Sequence*> others = holding();
  if (others.empty()) return true;
  if (others.size() >= static_cast<std::size_t>(config_.limits.max_seqs)) return false;
  std::int64_t total = most_blocks(seq);
  for (const Sequence* other : others) total += most_blocks(*other);
  return total <= allocator_.pool().num_blocks();
}

bool Scheduler::place(SeqId id, bool from_cache) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end() || it->second->status != Status::kWaiting || it->second->spec.outputs.empty() ||
      it->second->num_preemptions > 0)
    throw InvalidField("id", std::to_string(id) + " is not a waiting sequence that was prefilled elsewhere");
  Sequence& seq = *it->second;
  if (verdict(seq) || !lasts_beside_others(seq)) return false;  // the next plan ends what can never be served
  const Limits& limits = config_.limits;
  const Hit hit = from_cache ? allocator_.find_hit(seq) : Hit{};
  const Hit* taken = from_cache ? &hit : nullptr;
  const std::int32_t all = seq.ledger.num_tokens() - 1, rest = all - hit.num_tokens;
  if (num_running() + num_prompted() > 0 &&
      allocator_.missing(seq, rest, limits.lookahead, taken, limits.watermark_blocks) > 0)
    return false;
  if (allocator_.allocate(seq, rest, 0, taken, 0) > 0) return false;
  seq.ledger.start_at(from_cache ? hit.num_tokens : all);
  seq.arrived_computed = seq.admitted_before = true;
  seq.spec.ready = false;
  queues_.push_prompted(&seq);
  return true;
}

void Scheduler::set_confidences(SeqId id, std::vector<double> confidences) {
  check_confidences(confidences);
  const auto it = sequences_.find(id);
  if (it != sequences_.end()) it->second->confidences = std::move(confidences);
}

void Scheduler::set_cost(StepCost cost) {
  check_cost(cost);
  cost_ = std::move(cost);
}

}  // namespace headrace::core
