#include "core/scheduler.h"

#include <algorithm>
#include <unordered_set>

namespace headrace::core {
namespace {

void check_kind(StepKind kind, Role role) {
  const bool fits = role == Role::kUnified  ? kind == StepKind::kMixed
                    : role == Role::kPrompt ? kind == StepKind::kPrefill
                    : role == Role::kNormal ? kind != StepKind::kMixed
                                            : kind == StepKind::kDecode;
  if (!fits) throw InvalidField("kind", "an engine of this role does not plan steps of this kind");
}

auto planner_of(StepKind kind) {
  return kind == StepKind::kMixed ? plan_mixed : kind == StepKind::kPrefill ? plan_prefill : plan_decode;
}

bool holds_any(const Sequence& seq, const std::unordered_set<BlockId>& wanted) {
  const auto is_wanted = [&](BlockId block) { return wanted.count(block) > 0; };
  return std::any_of(seq.blocks.begin(), seq.blocks.end(), [&](const std::vector<BlockId>& group) {
    return std::any_of(group.begin(), group.end(), is_wanted);
  });
}

bool contains(const std::vector<Token>& tokens, Token token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

}  // namespace

Scheduler::Scheduler(SchedulerConfig config)
    : config_(checked_config(std::move(config))),
      allocator_(config_.num_blocks, config_.block_size, config_.groups, config_.prefix_caching, config_.hash),
      queues_(config_.limits.priority) {}

void Scheduler::add(SequenceSpec spec) {
  check(spec);
  check_arrival(spec);
  queues_.push_waiting(&enlist(std::move(spec)));
}

Sequence& Scheduler::enlist(SequenceSpec spec) {
  const SeqId id = spec.id;
  auto seq = std::make_unique<Sequence>(std::move(spec), allocator_.num_groups());
  seq->num_sent.assign(allocator_.num_groups(), 0);
  return *sequences_.emplace(id, std::move(seq)).first->second;
}

const Sequence* Scheduler::find(SeqId id) const {
  const auto it = sequences_.find(id);
  return it == sequences_.end() ? nullptr : it->second.get();
}

bool Scheduler::finish(SeqId id) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return false;
  retire(*it->second);
  return true;
}

// Blocks can go at once even while a step that writes them is in flight: the device runs steps in order, so a later
// owner writes after it. (A transfer that reads them would have to hold a reference of its own.)
void Scheduler::retire(Sequence& seq) {
  allocator_.free(seq);
  queues_.leave_waiting(&seq);
  queues_.leave_prompted(&seq);
  queues_.leave_running(&seq);
  if (seq.known_to_worker) dropped_.push_back(seq.id());
  sequences_.erase(seq.id());
}

void Scheduler::set_ready(SeqId id, bool ready) {
  const auto it = sequences_.find(id);
  if (it != sequences_.end()) it->second->spec.ready = ready;
}

void Scheduler::set_drafts(SeqId id, std::vector<Token> drafts) {
  for (const Token token : drafts)
    if (token < 0) throw InvalidField("drafts", "token ids must not be negative");
  const auto it = sequences_.find(id);
  if (it != sequences_.end()) it->second->drafts = std::move(drafts);
}

std::vector<SeqId> Scheduler::running_ids() const {
  std::vector<SeqId> out;
  for (const Sequence* seq : queues_.running()) out.push_back(seq->id());
  return out;
}

std::vector<SeqId> Scheduler::waiting_ids() const {
  std::vector<SeqId> out;
  for (const Sequence* seq : queues_.waiting()) out.push_back(seq->id());
  return out;
}

std::int32_t Scheduler::capacity_tokens() const {
  const Limits& limits = config_.limits;
  return std::max(0, allocator_.capacity_tokens(limits.most_in_flight()) - limits.lookahead);
}

void Scheduler::preempt(Sequence& seq, StaleMode mode, StepPlan* plan) {
  const std::int32_t returned = allocator_.free(seq);
  queues_.leave_running(&seq);
  queues_.leave_prompted(&seq);
  for (InFlight& flight : seq.in_flight) flight.stale = true;
  seq.ledger.reset();
  seq.stale_mode = mode;
  seq.drafts.clear();
  seq.confidences.clear();
  ++seq.num_preemptions;
  ++stats_.preemptions;
  if (seq.known_to_worker) dropped_.push_back(seq.id());
  seq.known_to_worker = false;
  std::fill(seq.num_sent.begin(), seq.num_sent.end(), 0);
  if (seq.status != Status::kWaiting) queues_.push_waiting_front(&seq);
  if (plan) plan->note(seq.id(), Note::kPreempted, returned);
}

void Scheduler::settle(const Slice& slice, Step& step) {
  Sequence& seq = *slice.seq;
  seq.drafts.resize(slice.drafts);
  const std::int32_t promised = seq.ledger.advance(slice.q, slice.drafts);
  seq.in_flight.push_back({step.id, slice.q, promised, false});
  step.slices.push_back({seq.id(), slice.q, promised});
  const std::int32_t known = std::min(seq.ledger.num_computed(), seq.ledger.num_tokens());
  const std::vector<BlockId> named = allocator_.name_blocks(seq, known);
  step.fenced.insert(step.fenced.end(), named.begin(), named.end());
}

PlanContext Scheduler::context(StepPlan& plan, Step& step) {
  return {queues_,
          allocator_,
          config_.limits,
          plan,
          cost_,
          [this, &plan](Sequence& seq, StaleMode mode) { preempt(seq, mode, &plan); },
          [this, &step](const Slice& slice) { settle(slice, step); }};
}

StepPlan Scheduler::plan(StepKind kind, const PlanOptions& options) {
  check_kind(kind, config_.limits.role);
  if (options.time_budget_ns < 0) throw InvalidField("time_budget_ns", "must not be negative");
  StepPlan plan;
  plan.kind = kind, plan.time_budget_ns = options.time_budget_ns;
  Step step{next_step_, {}, {}, {}};
  PlanContext context = this->context(plan, step);
  sweep();
  const Decision decision = planner_of(kind)(context);
  sweep();  // whoever had to give way where nothing is recomputed
  for (const auto& [id, reason] : ignored_) plan.note(id, Note::kIgnored, static_cast<std::int32_t>(reason));
  plan.token_budget_left = decision.left.tokens;
  plan.input_budget_left = decision.left.inputs;
  plan.num_free_blocks = allocator_.pool().num_free();
  plan.num_running = static_cast<std::int32_t>(num_running());
  plan.num_waiting = static_cast<std::int32_t>(num_waiting());
  if (decision.slices.empty() && !options.companion) return plan;
  plan.step = next_step_++;
  plan.reserve(decision.slices.size(), static_cast<std::size_t>(allocator_.num_groups()));
  for (const Slice& slice : decision.slices) write_slice(slice, plan);
  plan.dropped = std::move(dropped_);
  dropped_.clear();
  for (std::size_t i = 1; i < plan.clone_blocks.size(); i += 2) step.cloned.push_back(plan.clone_blocks[i]);
  steps_.push_back(std::move(step));
  return plan;
}

void Scheduler::write_slice(const Slice& slice, StepPlan& plan) {
  Sequence& seq = *slice.seq;
  const InFlight& flight = seq.in_flight.back();
  const auto index = static_cast<std::int32_t>(plan.seq_ids.size());
  plan.seq_ids.push_back(seq.id());
  plan.num_scheduled.push_back(slice.q);
  plan.num_computed.push_back(seq.ledger.num_computed() - slice.q);
  plan.num_tokens.push_back(seq.ledger.num_tokens());
  plan.num_drafts.push_back(slice.drafts);
  plan.samples.push_back(flight.promised > 0);
  plan.clips.push_back(static_cast<std::uint8_t>(slice.clip));
  plan.draft_tokens.insert(plan.draft_tokens.end(), seq.drafts.begin(), seq.drafts.end());
  seq.drafts.clear();
  seq.confidences.clear();
  if (!seq.known_to_worker) {
    seq.known_to_worker = true;
    plan.fresh_slices.push_back(index);
    plan.fresh_cached.push_back(plan.num_computed.back());
    plan.fresh_tokens.insert(plan.fresh_tokens.end(), seq.tokens.begin(), seq.tokens.end());
    plan.fresh_offsets.push_back(static_cast<std::int32_t>(plan.fresh_tokens.size()));
    if (seq.num_preemptions == 0 && seq.spec.reads_cache && !seq.arrived_computed) {
      stats_.prefix_queries += seq.prompt_len();
      stats_.prefix_hits += plan.num_computed.back();
    }
  }
  write_blocks(seq, plan);
}

void Scheduler::write_blocks(Sequence& seq, StepPlan& plan) {
  for (std::int32_t g = 0; g < allocator_.num_groups(); ++g) {
    const auto& blocks = seq.blocks[g];
    plan.block_starts.push_back(seq.num_sent[g]);
    plan.block_ids.insert(plan.block_ids.end(), blocks.begin() + seq.num_sent[g], blocks.end());
    plan.block_offsets.push_back(static_cast<std::int32_t>(plan.block_ids.size()));
    seq.num_sent[g] = static_cast<std::int32_t>(blocks.size());
  }
}

const Scheduler::Step& Scheduler::front_step(StepId id) const {
  if (!steps_.empty() && steps_.front().id == id) return steps_.front();
  const bool known = std::any_of(steps_.begin(), steps_.end(), [&](const Step& step) { return step.id == id; });
  throw std::logic_error(
      "scheduler: step " + std::to_string(id) +
      (known ? " is not the oldest in flight: steps return in the order they were planned" : " is not in flight"));
}

// The end rules, in the order they are documented: end-of-sequence (unless ignored or too early), stop ids, lengths.
Finish Scheduler::ended(const Sequence& seq, Token token) const {
  const bool early = seq.num_outputs() < seq.spec.min_tokens;
  if (!early && !seq.spec.ignore_eos && contains(seq.spec.eos_ids, token)) return Finish::kStop;
  if (!early && contains(seq.spec.stop_ids, token)) return Finish::kStop;
  const bool full = static_cast<std::int32_t>(seq.tokens.size()) >= seq.length_limit(config_.limits.max_model_len);
  return full ? Finish::kLength : Finish::kNone;
}

std::int32_t Scheduler::append(Sequence& seq, std::span<const Token> tokens, Finish* finish,
                               std::vector<Token>& emitted) const {
  const std::size_t before = emitted.size();
  for (const Token token : tokens) {
    seq.tokens.push_back(token);
    emitted.push_back(token);
    *finish = ended(seq, token);
    if (*finish != Finish::kNone) break;
  }
  return static_cast<std::int32_t>(emitted.size() - before);
}

// The sequence a slice was planned for, if it still waits for this very result. A sequence that has ended is gone,
// and one that took over its id since has not planned this step.
Sequence* Scheduler::waits_for(const Planned& planned, StepId step) const {
  const auto it = sequences_.find(planned.id);
  if (it == sequences_.end()) return nullptr;
  const auto& in_flight = it->second->in_flight;
  return !in_flight.empty() && in_flight.front().step == step ? it->second.get() : nullptr;
}

Scheduler::Emission Scheduler::absorb(const Planned& planned, StepId step, std::int32_t num_valid,
                                      std::span<const Token> tokens, std::vector<Token>& emitted) {
  Emission out;
  Sequence* found = waits_for(planned, step);
  if (!found) return out;
  Sequence& seq = *found;
  const InFlight flight = seq.in_flight.front();
  seq.in_flight.pop_front();
  if (flight.stale) {
    const bool deliver = seq.stale_mode == StaleMode::kDeliver;
    out.outcome = deliver ? Outcome::kDelivered : Outcome::kDropped;
    const std::int32_t count = deliver ? append(seq, tokens, &out.finish, emitted) : 0;
    seq.ledger.drain(flight.q, count, seq.stale_mode);
  } else {
    out.outcome = Outcome::kCommitted;
    const std::int32_t count = append(seq, tokens, &out.finish, emitted);
    seq.ledger.commit(flight.q, num_valid, flight.promised, count);
    allocator_.name_blocks(seq, std::min(seq.ledger.num_valid(), seq.ledger.num_tokens()));
    seal(seq);
  }
  if (out.finish != Finish::kNone) retire(seq);
  return out;
}

CommitResult Scheduler::commit(StepId id, std::span<const std::int32_t> num_valid,
                               std::span<const std::int32_t> offsets, std::span<const Token> tokens) {
  check_result(front_step(id), num_valid, offsets, tokens);
  const Step done = std::move(steps_.front());
  steps_.pop_front();
  CommitResult result;
  result.reserve(done.slices.size());
  for (std::size_t i = 0; i < done.slices.size(); ++i) {
    const auto row = tokens.subspan(offsets[i], offsets[i + 1] - offsets[i]);
    const Emission emission = absorb(done.slices[i], id, num_valid[i], row, result.tokens);
    result.seq_ids.push_back(done.slices[i].id);
    if (emission.outcome == Outcome::kGone) result.gone_tokens += done.slices[i].q;
    if (emission.outcome == Outcome::kDropped) result.dropped_tokens += done.slices[i].q;
    result.outcomes.push_back(static_cast<std::uint8_t>(emission.outcome));
    result.finishes.push_back(static_cast<std::uint8_t>(emission.finish));
    result.offsets.push_back(static_cast<std::int32_t>(result.tokens.size()));
  }
  return result;
}

// Takes back the names that steps in flight gave, and every sequence in those steps: steps after the failed one read
// what it should have written. So does whoever holds a block that they name or fill without being in one of them: it
// was placed upon it, or got a copy of its own and then no row.
void Scheduler::void_steps_in_flight() {
  std::unordered_set<SeqId> touched;
  std::unordered_set<BlockId> lost;
  for (Step& step : steps_) {
    for (const BlockId block : step.fenced) allocator_.pool().forget(block);
    lost.insert(step.fenced.begin(), step.fenced.end());
    lost.insert(step.cloned.begin(), step.cloned.end());
    step.fenced.clear();
    for (const Planned& planned : step.slices) touched.insert(planned.id);
  }
  const std::vector<Sequence*> held = holding();
  for (const Sequence* seq : held)
    if (holds_any(*seq, lost)) touched.insert(seq->id());
  for (auto it = held.rbegin(); it != held.rend(); ++it)  // tail first: waiting keeps their order
    if (touched.count((*it)->id())) preempt(**it, StaleMode::kDrop, nullptr);
  for (const SeqId id : touched) {  // also those preempted before, whose later results would still be delivered
    const auto it = sequences_.find(id);
    if (it != sequences_.end()) it->second->stale_mode = StaleMode::kDrop;
  }
}

// Its sequences are for the caller to end, but for those whose part in it was void before: they are computed anew.
std::vector<SeqId> Scheduler::fail(StepId id) {
  const Step failed = front_step(id);
  std::vector<SeqId> alive;
  for (const Planned& planned : failed.slices) {
    const Sequence* const seq = waits_for(planned, id);
    if (seq && !seq->in_flight.front().stale) alive.push_back(planned.id);
  }
  void_steps_in_flight();
  steps_.pop_front();
  std::vector<Token> nothing;
  for (const Planned& planned : failed.slices) absorb(planned, id, 0, {}, nothing);
  return alive;
}

bool Scheduler::reset_prefix_cache(bool reset_running) {
  const std::vector<Sequence*> held = holding();
  if (!held.empty() && !reset_running) return false;
  for (auto it = held.rbegin(); it != held.rend(); ++it) preempt(**it, StaleMode::kDrop, nullptr);
  for (Step& step : steps_) step.fenced.clear();
  allocator_.pool().forget_all();
  return true;
}

}  // namespace headrace::core
