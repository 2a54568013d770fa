// The scheduler: sequences, queues, allocator and steps in flight behind six calls: add, abort, plan, commit, fail,
// and reads of its counts. A pure function of the calls made to it: no clock, no randomness, no callbacks to Python.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/planner.h"

namespace headrace::core {

struct SchedulerConfig {
  std::int32_t num_blocks = 0;  // the null block included
  std::int32_t block_size = 32;
  std::vector<GroupSpec> groups{GroupSpec{}};
  bool prefix_caching = true;
  HashKind hash = HashKind::kSha256Cbor;
  std::int32_t seal_tokens = 0;  // report stretches of this many tokens once their KV is final; 0 = never
  Limits limits;
};

// A stretch of `seal_tokens` tokens whose KV is final, and the blocks that hold it, group after group; kNullBlock where
// a window has passed. True until the next plan.
struct Sealed {
  SeqId seq = 0;
  std::int32_t index = 0;
  std::vector<Token> tokens;
  std::vector<BlockId> blocks;
};

// The configuration with input_budget filled in. Throws InvalidField naming the knob.
SchedulerConfig checked_config(SchedulerConfig config);

// What became of a slice's result.
enum class Outcome : std::uint8_t {
  kCommitted = 0,
  kDelivered = 1,  // of a void step, appended all the same
  kDropped = 2,    // of a void step, thrown away
  kGone = 3,       // the sequence had ended before
};

// One entry per slice of the committed step; offsets/tokens are what was really emitted, trimmed at stops.
struct CommitResult {
  std::vector<SeqId> seq_ids;
  std::vector<std::uint8_t> outcomes;
  std::vector<std::uint8_t> finishes;
  std::vector<std::int32_t> offsets{0};
  std::vector<Token> tokens;
  std::int64_t gone_tokens = 0;     // computed for sequences that had ended
  std::int64_t dropped_tokens = 0;  // computed for sequences that had given way

  void reserve(std::size_t slices) {
    seq_ids.reserve(slices), outcomes.reserve(slices), finishes.reserve(slices);
    offsets.reserve(slices + 1), tokens.reserve(slices);
  }
};

struct Stats {
  std::int64_t prefix_queries = 0;  // tokens looked up at first admissions
  std::int64_t prefix_hits = 0;     // tokens found
  std::int64_t preemptions = 0;
};

struct PlanOptions {
  std::int64_t time_budget_ns = 0;  // of a PREFILL step, after its reduction over the group; 0 = none
  bool companion = false;           // make a step even when there is nothing to schedule: other ranks have
};

class Scheduler {
 public:
  // Throws InvalidField naming the knob.
  explicit Scheduler(SchedulerConfig config);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Throws InvalidField naming the field; nothing is changed then.
  void add(SequenceSpec spec);
  // Ends a sequence at once; results still in flight for it will be reported as gone. False when unknown.
  bool finish(SeqId id);
  void set_ready(SeqId id, bool ready);
  // Speculated continuation to verify in the next step. Ignored for unknown sequences. Throws InvalidField.
  void set_drafts(SeqId id, std::vector<Token> drafts);

  // The next step, empty (no slices, no id) when nothing can run. MIXED is for unified engines, the other kinds for
  // phased ones; throws InvalidField for a kind this engine's role does not plan.
  StepPlan plan(StepKind kind, const PlanOptions& options = {});
  // Whether a PREFILL step would schedule something now. Changes nothing that can be observed.
  bool prefill_possible();
  // Sequences that plans have ended by themselves since the last call, and why. In phased engines only. Until taken
  // they are notes of every plan, so that a plan that came out empty can be forgotten without losing them.
  std::vector<std::pair<SeqId, Ignored>> take_ignored();

  // A sequence that shares what `parent` has computed and continues on its own: its prompt and outputs are those
  // tokens and one more, its keys the parent's. It may do without the last of them: then, told to end at the parent's
  // prompt, it computes that row again and draws a first token of its own. The parent must have nothing in flight.
  // Phased engines only. Throws InvalidField.
  void fork(SeqId parent, SequenceSpec spec);
  // Gives a waiting sequence that was prefilled elsewhere its blocks, for all tokens but the last, and makes it
  // prompted but not ready: fill them, then set_ready. False (no change) while max_seqs hold blocks already, or it
  // and they could not all run to their ends. `from_cache`: it begins with what the pool holds of it, and its next
  // steps compute the rest, as far as others leave them room.
  bool place(SeqId id, bool from_cache = false);
  // Per draft: acceptance given that all before it were accepted. For the next step only. Throws InvalidField.
  void set_confidences(SeqId id, std::vector<double> confidences);
  // What verifying more drafts costs, from now on. Throws InvalidField.
  void set_cost(StepCost cost);
  // The result of a step: per slice how many rows stand, and offsets/tokens emitted. A slice that samples emits one
  // token more than the drafts it accepted, or none when its row could not be sampled: then the caller must finish
  // the sequence. Other slices emit nothing. Throws InvalidField, and changes nothing, on a result that does not fit.
  CommitResult commit(StepId step, std::span<const std::int32_t> num_valid, std::span<const std::int32_t> offsets,
                      std::span<const Token> tokens);
  // The step did not run, or not wholly: names it gave to blocks are taken back, its sequences (and those of later
  // steps in flight) go back to waiting, to be recomputed. Returns the sequences of the failed step still alive.
  std::vector<SeqId> fail(StepId step);
  // Forgets all cached content. With sequences running: false and no change, unless they may be reset too.
  bool reset_prefix_cache(bool reset_running);

  // Stretches sealed since the last call; to be taken after every commit.
  std::vector<Sealed> take_sealed();
  // Tokens of a sequence that the pool holds now. Changes nothing that can be observed.
  std::int32_t cached_tokens(SeqId id);
  // Blocks for stored KV of a waiting sequence, to be filled before any step planned later; see Allocator.
  std::vector<ImportedBlock> import_prefix(SeqId id, std::int32_t num_tokens, std::int32_t first = 0);

  const Sequence* find(SeqId id) const;
  std::size_t num_waiting() const { return queues_.num_waiting(); }
  std::size_t num_running() const { return queues_.running().size(); }
  std::size_t num_prompted() const { return queues_.prompted().size(); }
  std::size_t num_unfinished() const { return sequences_.size(); }
  std::size_t num_steps_in_flight() const { return steps_.size(); }
  std::vector<SeqId> running_ids() const;
  std::vector<SeqId> waiting_ids() const;
  std::vector<SeqId> prompted_ids() const;
  // The longest sequence, prompt and output, that the pool can hold at all; add() refuses longer ones.
  std::int32_t capacity_tokens() const;
  Allocator& allocator() { return allocator_; }
  const Allocator& allocator() const { return allocator_; }
  const Stats& stats() const { return stats_; }
  const SchedulerConfig& config() const { return config_; }

 private:
  struct Planned {
    SeqId id;
    std::int32_t q;
    std::int32_t promised;
  };
  struct Step {
    StepId id;
    std::vector<Planned> slices;
    std::vector<BlockId> fenced;  // named by this step; permanent once its result is here
    std::vector<BlockId> cloned;  // filled by this step from others, before anything else
  };
  struct Emission {
    Outcome outcome = Outcome::kGone;
    Finish finish = Finish::kNone;
  };

  void check(const SequenceSpec& spec) const;
  void check_room(const SequenceSpec& spec) const;
  void check_arrival(const SequenceSpec& spec) const;
  void check_result(const Step& step, std::span<const std::int32_t> num_valid, std::span<const std::int32_t> offsets,
                    std::span<const Token> tokens) const;
  void check_row(const Step& step, std::size_t slice, std::int32_t num_valid, std::int32_t emitted) const;
  Sequence& enlist(SequenceSpec spec);
  PlanContext context(StepPlan& plan, Step& step);
  std::optional<Ignored> verdict(const Sequence& seq) const;
  void sweep();
  std::vector<Sequence*> holding() const;
  std::int64_t most_blocks(const Sequence& seq) const;
  bool lasts_beside_others(const Sequence& seq) const;
  void preempt(Sequence& seq, StaleMode mode, StepPlan* plan);
  void settle(const Slice& slice, Step& step);
  void write_slice(const Slice& slice, StepPlan& plan);
  void write_blocks(Sequence& seq, StepPlan& plan);
  // What the sequence takes over of `tokens` is added to `emitted`; append returns how many.
  Emission absorb(const Planned& planned, StepId step, std::int32_t num_valid, std::span<const Token> tokens,
                  std::vector<Token>& emitted);
  std::int32_t append(Sequence& seq, std::span<const Token> tokens, Finish* finish, std::vector<Token>& emitted) const;
  Finish ended(const Sequence& seq, Token token) const;
  void retire(Sequence& seq);
  void seal(Sequence& seq);
  const Step& front_step(StepId id) const;
  Sequence* waits_for(const Planned& planned, StepId step) const;
  void void_steps_in_flight();

  SchedulerConfig config_;
  Allocator allocator_;
  Queues queues_;
  Stats stats_;
  std::unordered_map<SeqId, std::unique_ptr<Sequence>> sequences_;
  std::deque<Step> steps_;
  StepCost cost_;
  std::vector<std::pair<SeqId, Ignored>> ignored_;
  std::vector<Sealed> sealed_;
  std::vector<SeqId> dropped_;  // rows the worker may forget, told with the next plan
  StepId next_step_ = 0;
};

}  // namespace headrace::core
