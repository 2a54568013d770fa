// A sequence: what a request is inside the core. Holds its tokens, its ledger, its blocks per KV group and the
// content chain of its full blocks. It never frees or allocates; the allocator does.
#pragma once

#include <deque>
#include <vector>

#include "core/chain.h"
#include "core/ledger.h"
#include "core/types.h"

namespace headrace::core {

// Prompted: every prompt token is planned, decoding has not begun (engines that plan the two apart).
enum class Status : std::uint8_t { kWaiting = 0, kRunning = 1, kFinished = 2, kPrompted = 3 };

// What the caller asks for; checked by Scheduler::add.
struct SequenceSpec {
  SeqId id = 0;
  std::vector<Token> prompt;
  std::vector<Token> outputs;  // emitted before it came here: by a prompt engine, or by the sequence it forks from
  std::vector<std::int32_t> checkpoints;  // positions at which a prefill slice must end, ascending
  std::int32_t max_tokens = 16;
  std::int32_t min_tokens = 0;
  std::vector<Token> eos_ids;   // end the sequence unless ignore_eos
  std::vector<Token> stop_ids;  // end it in any case
  bool ignore_eos = false;
  bool reads_cache = true;    // false when prompt logprobs are wanted: every row must be computed
  bool ready = true;          // false while a grammar compiles or KV loads
  std::int64_t priority = 0;  // lower is served first
  double arrival = 0.0;       // seconds, any clock; orders equal priorities
  ExtraKeys keys;
};

// A step that is computing part of a sequence.
struct InFlight {
  StepId step = kNoStep;
  std::int32_t q = 0;
  std::int32_t promised = 0;
  bool stale = false;
};

struct Sequence {
  Sequence(SequenceSpec spec_in, std::int32_t num_groups)
      : spec(std::move(spec_in)),
        tokens(spec.prompt),
        ledger(static_cast<std::int32_t>(spec.prompt.size() + spec.outputs.size())),
        blocks(num_groups),
        num_named(num_groups, 0) {
    tokens.insert(tokens.end(), spec.outputs.begin(), spec.outputs.end());
  }

  SeqId id() const { return spec.id; }
  std::int32_t prompt_len() const { return static_cast<std::int32_t>(spec.prompt.size()); }
  std::int32_t num_outputs() const { return static_cast<std::int32_t>(tokens.size()) - prompt_len(); }
  std::int32_t num_drafts() const { return static_cast<std::int32_t>(drafts.size()); }
  // The longest this sequence may become, prompt included.
  std::int32_t length_limit(std::int32_t max_model_len) const {
    return std::min<std::int64_t>(max_model_len, std::int64_t{prompt_len()} + spec.max_tokens);
  }
  bool drained() const { return ledger.num_stale() == 0; }
  // Waits with a part of its prefill done: it holds blocks.
  bool started() const { return status == Status::kWaiting && ledger.num_computed() > 0; }

  SequenceSpec spec;
  std::vector<Token> tokens;  // prompt, then committed outputs
  Ledger ledger;
  std::vector<Token> drafts;                 // speculated continuation, not yet planned
  std::vector<double> confidences;           // per draft: acceptance given that all before it were accepted
  std::vector<std::vector<BlockId>> blocks;  // per group; kNullBlock behind a sliding window
  std::vector<std::int32_t> num_named;       // per group: leading blocks whose content has been named
  std::vector<ChainNodePtr> chain;           // content of full blocks, as far as tokens are known
  std::deque<InFlight> in_flight;
  Status status = Status::kWaiting;
  StaleMode stale_mode = StaleMode::kDeliver;
  bool known_to_worker = false;        // the worker holds its row; else the next plan carries everything
  std::vector<std::int32_t> num_sent;  // per group: blocks the worker has been told of
  std::int32_t num_cached_tokens = 0;  // hit taken at first admission
  std::int32_t num_preemptions = 0;
  std::int32_t num_sealed = 0;  // grains told to whoever stores them
  bool admitted_before = false;
  bool arrived_computed = false;   // forked or handed over: what it had computed was no prefix hit
  bool shares_last_block = false;  // forked inside a block, which must be cloned before it is written
};

}  // namespace headrace::core
