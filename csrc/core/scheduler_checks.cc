// What the scheduler refuses: configurations, sequences and results that cannot be right. Everything here looks and
// throws before anything has changed.
#include <cmath>

#include "core/scheduler.h"

namespace headrace::core {
namespace {

void at_least(std::int64_t least, const char* field, std::int64_t value) {
  if (value < least) throw InvalidField(field, "must be at least " + std::to_string(least));
  if (value > kMostOfAnything) throw InvalidField(field, "must be at most " + std::to_string(kMostOfAnything));
}

void check_tokens(const char* field, std::span<const Token> tokens) {
  for (const Token token : tokens)
    if (token < 0) throw InvalidField(field, "token ids must not be negative");
}

// Items in order and apart: otherwise one prompt would have several chains.
void check_media(const std::vector<MediaItem>& media) {
  std::int64_t end = 0;
  for (const MediaItem& item : media) {
    if (item.start < end || item.length < 1)
      throw InvalidField("keys", "media items must be ordered by start, not overlap, and fill a position at least");
    end = std::int64_t{item.start} + item.length;
  }
}

void check_costs(const PrefillCost& cost) {
  for (const double ns : {cost.fixed_ns, cost.per_token_ns, cost.per_pair_ns})
    if (!std::isfinite(ns) || ns < 0) throw InvalidField("prefill_cost", "must be finite and not negative");
}

// What belongs to one discipline only is refused in the other, not ignored.
void check_phases(const SchedulerConfig& config) {
  const Limits& l = config.limits;
  at_least(1, "cp_size", l.cp_size), at_least(1, "min_slice", l.min_slice), at_least(0, "max_sum_keys", l.max_sum_keys);
  check_costs(l.prefill_cost);
  if (!l.phased()) {
    if (l.cp_size != 1) throw InvalidField("cp_size", "is for engines that plan prompts apart");
    if (l.min_slice != 1) throw InvalidField("min_slice", "is for engines that plan prompts apart");
    if (l.max_sum_keys != 0) throw InvalidField("max_sum_keys", "is for engines that plan prompts apart");
    if (l.stop_preempted) throw InvalidField("stop_preempted", "is for engines that plan prompts apart");
  }
  if (l.longest_slice() < 1) throw InvalidField("token_budget", "must hold 2 * cp_size tokens");
  if (l.min_slice > l.longest_slice()) throw InvalidField("min_slice", "exceeds the longest slice a step can take");
  if (l.role == Role::kCompletion && !l.stop_preempted)
    throw InvalidField("stop_preempted", "a COMPLETION engine cannot recompute: it must stop preempted requests");
}

void check_checkpoints(const SequenceSpec& spec, const Limits& limits) {
  if (spec.checkpoints.empty()) return;
  if (!limits.phased()) throw InvalidField("checkpoints", "are for engines that plan prompts apart");
  std::int32_t last = 0;
  for (const std::int32_t position : spec.checkpoints) {
    if (position <= last || position >= static_cast<std::int64_t>(spec.prompt.size()))
      throw InvalidField("checkpoints", "must rise and lie inside the prompt");
    for (const MediaItem& item : spec.keys.media)
      if (item.start < position && position < std::int64_t{item.start} + item.length)
        throw InvalidField("checkpoints", "must not lie inside a media item");
    last = position;
  }
}

}  // namespace

SchedulerConfig checked_config(SchedulerConfig config) {
  Limits& l = config.limits;
  at_least(1, "token_budget", l.token_budget), at_least(1, "max_seqs", l.max_seqs);
  at_least(2, "max_model_len", l.max_model_len), at_least(0, "draft_slots", l.draft_slots);
  at_least(0, "lookahead", l.lookahead), at_least(0, "long_prefill_threshold", l.long_prefill_threshold);
  at_least(0, "watermark_blocks", l.watermark_blocks), at_least(0, "input_budget", l.input_budget);
  if (l.input_budget == 0)
    l.input_budget = static_cast<std::int32_t>(
        std::min<std::int64_t>(kMostOfAnything, l.token_budget + std::int64_t{l.draft_slots} * l.max_seqs));
  if (l.input_budget <= l.draft_slots) throw InvalidField("input_budget", "must be greater than draft_slots");
  if (config.num_blocks >= 2 && l.watermark_blocks >= config.num_blocks - 1)
    throw InvalidField("watermark_blocks", "must leave at least one block of the pool to use");
  at_least(0, "seal_tokens", config.seal_tokens);
  if (config.seal_tokens > 0 && (config.block_size < 1 || config.seal_tokens % config.block_size != 0))
    throw InvalidField("seal_tokens", "must be a multiple of block_size");
  check_phases(config);
  return config;
}

void Scheduler::check(const SequenceSpec& spec) const {
  if (spec.id < 0) throw InvalidField("id", "must not be negative");
  if (sequences_.count(spec.id)) throw InvalidField("id", std::to_string(spec.id) + " is already in use");
  if (spec.prompt.empty()) throw InvalidField("prompt", "must hold at least one token");
  check_tokens("prompt", spec.prompt);
  check_tokens("outputs", spec.outputs);
  if (spec.max_tokens < 1) throw InvalidField("max_tokens", "must be at least 1");
  if (spec.min_tokens < 0 || spec.min_tokens > spec.max_tokens)
    throw InvalidField("min_tokens", "must lie between 0 and max_tokens");
  if (!std::isfinite(spec.arrival)) throw InvalidField("arrival", "must be a finite number");  // it orders queues
  check_media(spec.keys.media);
  check_checkpoints(spec, config_.limits);
  // What can never be served is refused here, or, where a group of engines must agree, ended by the next plan.
  if (!config_.limits.phased()) check_room(spec);
}

// Who comes with tokens computed elsewhere, and who must.
void Scheduler::check_arrival(const SequenceSpec& spec) const {
  const bool completion = config_.limits.role == Role::kCompletion;
  if (completion && spec.outputs.empty())
    throw InvalidField("outputs", "a COMPLETION engine takes sequences whose prompt was computed elsewhere");
  if (!completion && !spec.outputs.empty())
    throw InvalidField("outputs", "only a COMPLETION engine takes over sequences, and fork()");
}

// A sequence that is let in can always be served to its end, alone if need be.
void Scheduler::check_room(const SequenceSpec& spec) const {
  const Limits& limits = config_.limits;
  const auto length = static_cast<std::int64_t>(spec.prompt.size());
  if (length >= limits.max_model_len)
    throw InvalidField("prompt", std::to_string(length) + " tokens leave no room to generate within the context of " +
                                     std::to_string(limits.max_model_len));
  const auto limit = std::min<std::int64_t>(limits.max_model_len, length + spec.max_tokens);
  const std::int64_t blocks =
      allocator_.peak_blocks(static_cast<std::int32_t>(limit) + limits.lookahead, limits.most_in_flight());
  if (blocks > allocator_.pool().num_blocks())
    throw InvalidField("max_tokens", "prompt and output may need " + std::to_string(blocks) +
                                         " KV blocks, the pool has " + std::to_string(allocator_.pool().num_blocks()));
  // Uncut, all tokens known must fit into one step, also when the sequence is resumed just before its end.
  if (!limits.chunked_prefill && limit - 1 > limits.longest_slice())
    throw InvalidField(length > limits.longest_slice() ? "prompt" : "max_tokens",
                       "without chunked prefill a step takes " + std::to_string(limits.longest_slice()) +
                           " tokens of a sequence, this one may need " + std::to_string(limit - 1));
}

void Scheduler::check_result(const Step& step, std::span<const std::int32_t> num_valid,
                             std::span<const std::int32_t> offsets, std::span<const Token> tokens) const {
  const std::size_t count = step.slices.size();
  if (num_valid.size() != count) throw InvalidField("num_valid", "must hold one entry per slice");
  if (offsets.size() != count + 1 || offsets.front() != 0 ||
      offsets.back() != static_cast<std::int64_t>(tokens.size()) || !std::is_sorted(offsets.begin(), offsets.end()))
    throw InvalidField("offsets", "must cut the tokens into one row per slice");
  check_tokens("tokens", tokens);
  for (std::size_t i = 0; i < count; ++i) check_row(step, i, num_valid[i], offsets[i + 1] - offsets[i]);
}

// Only drafts can be rejected, and what is emitted follows from how many were. Of void results only the bounds matter.
void Scheduler::check_row(const Step& step, std::size_t slice, std::int32_t num_valid, std::int32_t emitted) const {
  const Planned& planned = step.slices[slice];
  const std::string where = "slice " + std::to_string(slice);
  const std::int32_t drafts = std::max(0, planned.promised - 1);
  if (num_valid < planned.q - drafts || num_valid > planned.q)
    throw InvalidField("num_valid", where + " has " + std::to_string(num_valid) + " of " + std::to_string(planned.q) +
                                        " rows with " + std::to_string(drafts) + " drafts");
  const Sequence* seq = waits_for(planned, step.id);
  const std::int32_t most = planned.promised - (planned.promised > 0 ? planned.q - num_valid : 0);
  const bool live = seq && !seq->in_flight.front().stale;
  if (emitted > most || (live && emitted != 0 && emitted != most))
    throw InvalidField("offsets",
                       where + " emits " + std::to_string(emitted) + " tokens instead of " + std::to_string(most));
}

}  // namespace headrace::core
