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
};

struct GroupSpec {
  GroupKind kind = GroupKind::kFull;
  std::int32_t window = 0;  // visible positions, the own one included; 0 for full attention
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

  // Tokens of one sequence that may hold blocks without being valid yet: a step in flight, one being planned, and
  // the lookahead.
  std::int32_t most_in_flight() const { return 2 * token_budget + lookahead; }
  // The longest slice one step can give a sequence.
  std::int32_t longest_slice() const {
    const std::int32_t room = std::min(token_budget, input_budget - draft_slots);
    return long_prefill_threshold > 0 ? std::min(room, long_prefill_threshold) : room;
  }
};

inline std::int32_t ceil_div(std::int32_t a, std::int32_t b) { return (a + b - 1) / b; }

// Thrown for input that names a field; text is "field: reason".
struct InvalidField : std::invalid_argument {
  InvalidField(const std::string& field, const std::string& reason) : std::invalid_argument(field + ": " + reason) {}
};

}  // namespace headrace::core
