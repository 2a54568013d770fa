// Words shared by every file of the core: identifiers, enumerations and the limits a planner obeys.
// Enumeration values cross the binding; Python's contract/ mirrors them and a test holds both equal.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace headrace::core {

using SeqId = std::int64_t;
using StepId = std::int64_t;
using BlockId = std::int32_t;
using Token = std::int32_t;

inline constexpr BlockId kNullBlock = 0;  // stands where a block is not held; never handed out
inline constexpr StepId kNoStep = -1;
// No limit may be larger: sums and doubles of limits then stay inside 32 bits.
inline constexpr std::int32_t kMostOfAnything = 1 << 28;

enum class StepKind : std::uint8_t { kMixed = 0, kPrefill = 1, kDecode = 2 };

// What an engine does. UNIFIED plans MIXED steps only; the other three plan prompts and decoding apart.
enum class Role : std::uint8_t {
  kUnified = 0,
  kNormal = 1,      // PREFILL and DECODE
  kPrompt = 2,      // PREFILL only; prompted sequences wait for their hand-off
  kCompletion = 3,  // DECODE only; sequences arrive prefilled
};

// Why a sequence was ended by the scheduler itself, unserved or in the middle.
enum class Ignored : std::uint8_t {
  kTooLong = 0,    // the prompt leaves no room to generate within the context
  kNeverFits = 1,  // no step and no empty pool can ever take it
  kPreempted = 2,  // it had to give way and this engine does not recompute
};

enum class GroupKind : std::uint8_t { kFull = 0, kSliding = 1 };

enum class Finish : std::uint8_t {
  kNone = 0,
  kStop = 1,     // end-of-sequence or a stop id was sampled
  kLength = 2,   // max_tokens or the model length was reached
  kAbort = 3,    // the caller took the request back
  kError = 4,    // the worker failed on it
  kIgnored = 5,  // it could never be served
};

// What happens to tokens that a void step has already sampled: appended when they arrive, or dropped.
enum class StaleMode : std::uint8_t { kDeliver = 0, kDrop = 1 };

// Why a slice is as long as it is.
enum class Clip : std::uint8_t {
  kWhole = 0,  // everything the sequence needed
  kTokenBudget = 1,
  kInputBudget = 2,
  kLongPrefill = 3,
  kModelLength = 4,
  kBlocks = 5,         // no more KV blocks
  kCheckpoint = 6,     // a position at which a slice must end
  kMedia = 7,          // just before a media item that would be cut
  kKeys = 8,           // the total key length of a prompt step
  kTime = 9,           // the time budget of a prompt step
  kVerification = 10,  // drafts not worth verifying
};

// What the planner decided about a sequence that is not (or no longer) in the plan, or a hit it took.
enum class Note : std::uint8_t {
  kHit = 0,             // value = tokens found in the prefix cache
  kPreempted = 1,       // value = blocks given back
  kNoBlocks = 2,        // value = blocks missing
  kNoBudget = 3,        // value = sequences left waiting
  kNoSlot = 4,          // max_seqs reached; value = sequences left waiting
  kNotReady = 5,        // grammar compiling, KV loading
  kNotDrained = 6,      // results of a void step are still to come
  kTooLongForStep = 7,  // chunking is off and the prompt exceeds the budget
  kIgnored = 8,         // ended by the scheduler; value = Ignored
  kCloned = 9,          // a forked sequence got blocks of its own; value = their number
};

struct GroupSpec {
  GroupKind kind = GroupKind::kFull;
  std::int32_t window = 0;  // visible positions, the own one included; 0 for full attention
};

// Predicted time of a prefill slice of q tokens after c computed ones: per_token q + per_pair (q c + q^2 / 2); `fixed`
// once per step. All in nanoseconds; a prediction of zero never limits.
struct PrefillCost {
  double fixed_ns = 0, per_token_ns = 0, per_pair_ns = 0;

  double slice(std::int64_t q, std::int64_t c) const {
    const auto tokens = static_cast<double>(q);
    return per_token_ns * tokens + per_pair_ns * (tokens * static_cast<double>(c) + tokens * tokens / 2);
  }
};

struct Limits {
  std::int32_t token_budget = 512;  // scheduled tokens per step
  std::int32_t input_budget = 0;    // scheduled tokens + draft_slots per sequence; 0 = what token_budget implies
  std::int32_t draft_slots = 0;     // rows kept free for drafting after the step
  std::int32_t lookahead = 0;       // tokens of block space asked for beyond the slice
  std::int32_t max_seqs = 64;
  std::int32_t max_model_len = 2048;
  std::int32_t long_prefill_threshold = 0;  // 0 = off
  std::int32_t watermark_blocks = 0;        // kept free when admitting
  bool chunked_prefill = true;
  bool full_sequence_must_fit = true;  // admit only when all tokens known now have room
  bool priority = false;               // victims and waiting order by (priority, arrival)
  // Of engines that plan prompts and decoding apart.
  Role role = Role::kUnified;
  std::int32_t cp_size = 1;       // context-parallel ranks: slices are padded to multiples of 2 * cp_size
  std::int32_t min_slice = 1;     // the least prefill slice worth scheduling, unless it is the last
  std::int32_t max_sum_keys = 0;  // total key length of one prompt step; 0 = no limit
  bool stop_preempted = false;    // end a sequence that has to give way instead of recomputing it
  PrefillCost prefill_cost;

  bool phased() const { return role != Role::kUnified; }
  std::int32_t quantum() const { return cp_size > 1 ? 2 * cp_size : 1; }

  // Tokens of one sequence that may hold blocks without being valid yet: a step in flight, one being planned, and
  // the lookahead.
  std::int32_t most_in_flight() const { return 2 * token_budget + lookahead; }
  // The longest slice one step can give a sequence.
  std::int32_t longest_slice() const {
    const std::int32_t room = std::min(token_budget / quantum() * quantum(), input_budget - draft_slots);
    return long_prefill_threshold > 0 ? std::min(room, long_prefill_threshold) : room;
  }
};

inline std::int32_t ceil_div(std::int32_t a, std::int32_t b) { return (a + b - 1) / b; }

// Thrown for input that names a field; text is "field: reason".
struct InvalidField : std::invalid_argument {
  InvalidField(const std::string& field, const std::string& reason) : std::invalid_argument(field + ": " + reason) {}
};

}  // namespace headrace::core
