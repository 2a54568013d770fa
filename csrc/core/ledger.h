// The ledger of one sequence: five counts and four moves. Nothing else may change these counts.
// num_computed is progress *planned*, optimistic while a step is in flight; never read it as "the device is done".
#pragma once

#include <cassert>
#include <cstdint>

#include "core/types.h"

namespace headrace::core {

class Ledger {
 public:
  Ledger() = default;
  explicit Ledger(std::int32_t num_tokens) : num_tokens_(num_tokens) {}

  std::int32_t num_tokens() const { return num_tokens_; }
  std::int32_t num_computed() const { return num_computed_; }
  std::int32_t num_in_flight() const { return num_in_flight_; }
  std::int32_t num_promised() const { return num_promised_; }
  std::int32_t num_stale() const { return num_stale_; }
  // Tokens whose KV certainly exists once all returned steps are counted.
  std::int32_t num_valid() const { return num_computed_ - (num_in_flight_ - num_stale_); }
  // Tokens still to be planned, given `drafts` speculated ones at the end.
  std::int32_t need(std::int32_t drafts) const { return num_tokens_ + drafts + num_promised_ - num_computed_; }

  // A prefix hit: only before anything was planned, and at least one token is left to compute.
  void start_at(std::int32_t num_cached) {
    require(num_computed_ == 0 && num_in_flight_ == 0, "a hit after progress");
    require(num_cached >= 0 && num_cached < num_tokens_, "a hit beyond the tokens");
    num_computed_ = num_cached;
  }

  // Plans q tokens. Returns what the step may emit: 1 + drafts when the slice reaches the sequence's end, else 0.
  std::int32_t advance(std::int32_t q, std::int32_t drafts) {
    require(q > 0 && q <= need(drafts), "advance beyond need");
    const std::int32_t promised = q == need(drafts) ? 1 + drafts : 0;
    num_computed_ += q;
    num_in_flight_ += q;
    num_promised_ += promised;
    return promised;
  }

  // A step returned: of its q tokens `valid` stand (the rest were rejected drafts), `emitted` are new.
  void commit(std::int32_t q, std::int32_t valid, std::int32_t promised, std::int32_t emitted) {
    require(valid >= 0 && valid <= q && q <= num_in_flight_ - num_stale_, "commit of tokens not in flight");
    require(promised >= 0 && promised <= num_promised_ && emitted >= 0, "commit of a promise never made");
    num_in_flight_ -= q;
    num_computed_ -= q - valid;
    num_promised_ -= promised;
    num_tokens_ += emitted;
  }

  // Preemption or cache reset: all planned progress is void.
  void reset() {
    num_computed_ = 0;
    num_stale_ = num_in_flight_;
    num_promised_ = 0;
  }

  // The result of a void step arrives.
  void drain(std::int32_t q, std::int32_t emitted, StaleMode mode) {
    require(q >= 0 && q <= num_stale_ && emitted >= 0, "drain of tokens that are not stale");
    num_in_flight_ -= q;
    num_stale_ -= q;
    if (mode == StaleMode::kDeliver) num_tokens_ += emitted;
  }

 private:
  static void require(bool condition, const char* what) {
    if (!condition) throw std::logic_error(std::string("ledger: ") + what);
  }

  std::int32_t num_tokens_ = 0;
  std::int32_t num_computed_ = 0;
  std::int32_t num_in_flight_ = 0;
  std::int32_t num_promised_ = 0;
  std::int32_t num_stale_ = 0;
};

}  // namespace headrace::core
