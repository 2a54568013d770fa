#include "core/scheduler.h"

#include <algorithm>

namespace headrace::core {
namespace {

bool contains(const std::vector<Token>& tokens, Token token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

SchedulerConfig checked(SchedulerConfig config) {
  const Limits& l = config.limits;
  const auto positive = [](const char* field, std::int64_t value) {
    if (value < 1) throw InvalidField(field, "must be at least 1");
  };
  const auto natural = [](const char* field, std::int64_t value) {
    if (value < 0) throw InvalidField(field, "must not be negative");
  };
  positive("token_budget", l.token_budget), positive("max_seqs", l.max_seqs);
  positive("max_model_len", l.max_model_len - 1), positive("input_budget", l.input_budget - l.draft_slots);
  natural("draft_slots", l.draft_slots), natural("lookahead", l.lookahead);
  natural("long_prefill_threshold", l.long_prefill_threshold), natural("watermark_blocks", l.watermark_blocks);
  return config;
}

}  // namespace

Scheduler::Scheduler(SchedulerConfig config)
    : config_(checked(std::move(config))),
      allocator_(config_.num_blocks, config_.block_size, config_.groups, config_.prefix_caching, config_.hash),
      queues_(config_.limits.priority) {}

void Scheduler::check(const SequenceSpec& spec) const {
  const Limits& limits = config_.limits;
  if (sequences_.count(spec.id)) throw InvalidField("id", std::to_string(spec.id) + " is already in use");
  if (spec.prompt.empty()) throw InvalidField("prompt", "must hold at least one token");
  for (const Token token : spec.prompt)
    if (token < 0) throw InvalidField("prompt", "token ids must not be negative");
  const auto length = static_cast<std::int64_t>(spec.prompt.size());
  if (length >= limits.max_model_len)
    throw InvalidField("prompt", std::to_string(length) + " tokens leave no room to generate within the context of " +
                                     std::to_string(limits.max_model_len));
  if (spec.max_tokens < 1) throw InvalidField("max_tokens", "must be at least 1");
  if (spec.min_tokens < 0 || spec.min_tokens > spec.max_tokens)
    throw InvalidField("min_tokens", "must lie between 0 and max_tokens");
  const auto limit = std::min<std::int64_t>(limits.max_model_len, length + spec.max_tokens);
  const std::int32_t blocks =
      allocator_.peak_blocks(static_cast<std::int32_t>(limit) + limits.lookahead, 2 * limits.token_budget);
  if (blocks > allocator_.pool().num_blocks())
    throw InvalidField("max_tokens", "prompt and output may need " + std::to_string(blocks) +
                                         " KV blocks, the pool has " + std::to_string(allocator_.pool().num_blocks()));
}

void Scheduler::add(SequenceSpec spec) {
  check(spec);
  const SeqId id = spec.id;
  auto seq = std::make_unique<Sequence>(std::move(spec), allocator_.num_groups());
  seq->num_sent.assign(allocator_.num_groups(), 0);
  queues_.push_waiting(seq.get());
  sequences_.emplace(id, std::move(seq));
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
  queues_.leave_running(&seq);
  if (seq.known_to_worker) dropped_.push_back(seq.id());
  sequences_.erase(seq.id());
}

void Scheduler::set_ready(SeqId id, bool ready) {
  const auto it = sequences_.find(id);
  if (it != sequences_.end()) it->second->spec.ready = ready;
}

void Scheduler::set_drafts(SeqId id, std::vector<Token> drafts) {
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

void Scheduler::preempt(Sequence& seq, StaleMode mode, StepPlan* plan) {
  const std::int32_t returned = allocator_.free(seq);
  queues_.leave_running(&seq);
  for (InFlight& flight : seq.in_flight) flight.stale = true;
  seq.ledger.reset();
  seq.stale_mode = mode;
  seq.drafts.clear();
  ++seq.num_preemptions;
  ++stats_.preemptions;
  if (seq.known_to_worker) dropped_.push_back(seq.id());
  seq.known_to_worker = false;
  std::fill(seq.num_sent.begin(), seq.num_sent.end(), 0);
  queues_.push_waiting_front(&seq);
  if (plan) plan->note(seq.id(), Note::kPreempted, returned);
}

void Scheduler::settle(const Slice& slice, Step& step) {
  Sequence& seq = *slice.seq;
  seq.drafts.resize(slice.drafts);
  const std::int32_t promised = seq.ledger.advance(slice.q, slice.drafts);
  seq.in_flight.push_back({step.id, slice.q, promised, false});
  step.slices.push_back({seq.id(), slice.q});
  const std::int32_t known = std::min(seq.ledger.num_computed(), seq.ledger.num_tokens());
  const std::vector<BlockId> named = allocator_.name_blocks(seq, known);
  step.fenced.insert(step.fenced.end(), named.begin(), named.end());
}

StepPlan Scheduler::plan(StepKind kind) {
  if (kind != StepKind::kMixed) throw InvalidField("kind", "only MIXED steps are planned by this scheduler");
  StepPlan plan;
  plan.kind = kind;
  Step step{next_step_, {}, {}};
  PlanContext context{queues_, allocator_, config_.limits, plan,
                      [&](Sequence& seq, StaleMode mode) { preempt(seq, mode, &plan); },
                      [&](const Slice& slice) { settle(slice, step); }};
  const Decision decision = plan_mixed(context);
  plan.token_budget_left = decision.left.tokens;
  plan.input_budget_left = decision.left.inputs;
  plan.num_free_blocks = allocator_.pool().num_free();
  plan.num_running = static_cast<std::int32_t>(num_running());
  plan.num_waiting = static_cast<std::int32_t>(num_waiting());
  if (decision.slices.empty()) return plan;
  plan.step = next_step_++;
  for (const Slice& slice : decision.slices) write_slice(slice, plan);
  plan.dropped = std::move(dropped_);
  dropped_.clear();
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
  if (!seq.known_to_worker) {
    seq.known_to_worker = true;
    plan.fresh_slices.push_back(index);
    plan.fresh_cached.push_back(plan.num_computed.back());
    plan.fresh_tokens.insert(plan.fresh_tokens.end(), seq.tokens.begin(), seq.tokens.end());
    plan.fresh_offsets.push_back(static_cast<std::int32_t>(plan.fresh_tokens.size()));
    if (seq.num_preemptions == 0 && seq.spec.reads_cache) {
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

Scheduler::Step* Scheduler::find_step(StepId id) {
  for (Step& step : steps_)
    if (step.id == id) return &step;
  throw std::logic_error("scheduler: step " + std::to_string(id) + " is not in flight");
}

// The end rules, in the order they are documented: end-of-sequence (unless ignored or too early), stop ids, lengths.
Finish Scheduler::ended(const Sequence& seq, Token token) const {
  const bool early = seq.num_outputs() < seq.spec.min_tokens;
  if (!early && !seq.spec.ignore_eos && contains(seq.spec.eos_ids, token)) return Finish::kStop;
  if (!early && contains(seq.spec.stop_ids, token)) return Finish::kStop;
  const bool full = static_cast<std::int32_t>(seq.tokens.size()) >= seq.length_limit(config_.limits.max_model_len);
  return full ? Finish::kLength : Finish::kNone;
}

std::vector<Token> Scheduler::append(Sequence& seq, std::span<const Token> tokens, Finish* finish) const {
  std::vector<Token> kept;
  for (const Token token : tokens) {
    seq.tokens.push_back(token);
    kept.push_back(token);
    *finish = ended(seq, token);
    if (*finish != Finish::kNone) break;
  }
  return kept;
}

Scheduler::Emission Scheduler::absorb(const Planned& planned, StepId step, std::int32_t num_valid,
                                      std::span<const Token> tokens) {
  Emission out;
  const auto it = sequences_.find(planned.id);
  if (it == sequences_.end() || it->second->in_flight.empty() || it->second->in_flight.front().step != step)
    return out;
  Sequence& seq = *it->second;
  const InFlight flight = seq.in_flight.front();
  seq.in_flight.pop_front();
  if (flight.stale) {
    const bool deliver = seq.stale_mode == StaleMode::kDeliver;
    out.outcome = deliver ? Outcome::kDelivered : Outcome::kDropped;
    if (deliver) out.tokens = append(seq, tokens, &out.finish);
    seq.ledger.drain(flight.q, static_cast<std::int32_t>(out.tokens.size()), seq.stale_mode);
  } else {
    out.outcome = Outcome::kCommitted;
    out.tokens = append(seq, tokens, &out.finish);
    seq.ledger.commit(flight.q, num_valid, flight.promised, static_cast<std::int32_t>(out.tokens.size()));
    allocator_.name_blocks(seq, std::min(seq.ledger.num_valid(), seq.ledger.num_tokens()));
  }
  if (out.finish != Finish::kNone) retire(seq);
  return out;
}

CommitResult Scheduler::commit(StepId id, std::span<const std::int32_t> num_valid,
                               std::span<const std::int32_t> offsets, std::span<const Token> tokens) {
  const Step* step = find_step(id);
  const std::size_t count = step->slices.size();
  if (num_valid.size() != count || offsets.size() != count + 1 || offsets.front() != 0 ||
      offsets.back() != static_cast<std::int32_t>(tokens.size()) || !std::is_sorted(offsets.begin(), offsets.end()))
    throw InvalidField("result", "its arrays do not fit the step's slices");
  for (std::size_t i = 0; i < count; ++i)
    if (num_valid[i] < 0 || num_valid[i] > step->slices[i].q)
      throw InvalidField("num_valid", "must lie between 0 and the slice's tokens");
  if (step != &steps_.front()) throw std::logic_error("scheduler: steps return in the order they were planned");
  const Step done = std::move(steps_.front());
  steps_.pop_front();
  CommitResult result;
  for (std::size_t i = 0; i < count; ++i) {
    const auto row = tokens.subspan(offsets[i], offsets[i + 1] - offsets[i]);
    const Emission emission = absorb(done.slices[i], id, num_valid[i], row);
    result.seq_ids.push_back(done.slices[i].id);
    result.outcomes.push_back(static_cast<std::uint8_t>(emission.outcome));
    result.finishes.push_back(static_cast<std::uint8_t>(emission.finish));
    result.tokens.insert(result.tokens.end(), emission.tokens.begin(), emission.tokens.end());
    result.offsets.push_back(static_cast<std::int32_t>(result.tokens.size()));
  }
  return result;
}

// Steps after the failed one read what it should have written, so they are void too. Every sequence that touched a
// block named by them was admitted in one of them, so going through their slices finds all.
std::vector<SeqId> Scheduler::fail(StepId id) {
  const Step failed = *find_step(id);
  if (failed.id != steps_.front().id) throw std::logic_error("scheduler: steps return in the order they were planned");
  for (Step& step : steps_) {
    for (const BlockId block : step.fenced) allocator_.pool().forget(block);
    step.fenced.clear();
    for (const Planned& planned : step.slices) {
      const auto it = sequences_.find(planned.id);
      if (it != sequences_.end() && it->second->status == Status::kRunning)
        preempt(*it->second, StaleMode::kDrop, nullptr);
    }
  }
  steps_.pop_front();
  std::vector<SeqId> alive;
  for (const Planned& planned : failed.slices)
    if (absorb(planned, id, 0, {}).outcome != Outcome::kGone) alive.push_back(planned.id);
  return alive;
}

bool Scheduler::reset_prefix_cache(bool reset_running) {
  if (!queues_.running().empty() && !reset_running) return false;
  while (!queues_.running().empty()) preempt(*queues_.running().back(), StaleMode::kDrop, nullptr);
  for (Step& step : steps_) step.fenced.clear();
  allocator_.pool().forget_all();
  return true;
}

}  // namespace headrace::core
