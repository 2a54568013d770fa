// What a step is to do: the contract between scheduler and worker. Flat arrays, one entry per slice unless said
// otherwise; *_offsets cut flat arrays into rows. New (and resumed) sequences carry everything, known ones only the
// blocks added since the last plan.
#pragma once

#include <vector>

#include "core/types.h"

namespace headrace::core {

// What a step computes, its drafts apart: how many of them run is known only afterwards.
struct StepSums {
  std::int32_t tokens = 0;
  std::int32_t decoding = 0;  // slices of one such token
  std::int64_t attended = 0;  // pairs of such a token and a position it may look at
};

struct StepPlan {
  StepId step = kNoStep;
  StepKind kind = StepKind::kMixed;
  std::int64_t time_budget_ns = 0;  // of a prompt step; 0 = none

  std::vector<SeqId> seq_ids;
  std::vector<std::int32_t> num_scheduled;  // tokens of the slice, drafts included
  std::vector<std::int32_t> num_computed;   // tokens before the slice
  std::vector<std::int32_t> num_tokens;     // tokens known to the core
  std::vector<std::int32_t> num_drafts;     // how many of num_scheduled are drafts
  std::vector<std::uint8_t> samples;        // 1 when the slice reaches the sequence's end
  std::vector<std::uint8_t> clips;          // Clip
  std::vector<std::int32_t> draft_tokens;   // flat, num_drafts per slice

  // Sequences the worker does not hold: their slice numbers, cached tokens, and all tokens known.
  std::vector<std::int32_t> fresh_slices;
  std::vector<std::int32_t> fresh_cached;
  std::vector<std::int32_t> fresh_offsets{0};
  std::vector<std::int32_t> fresh_tokens;

  // Blocks added, slice-major then group: row = slice * num_groups + group, placed from block_starts[row] on.
  std::vector<std::int32_t> block_starts;
  std::vector<std::int32_t> block_offsets{0};
  std::vector<std::int32_t> block_ids;

  // Rows the worker can drop before this step: finished or preempted since the last plan.
  std::vector<SeqId> dropped;

  // Device-side chores, in this order, before the forward.
  std::vector<std::int32_t> clone_states;  // pairs (from, to)
  std::vector<std::int32_t> clone_blocks;  // pairs (from, to)
  std::vector<std::int32_t> zero_states;

  // Why things are as they are: (sequence or -1, Note, value).
  std::vector<SeqId> note_seqs;
  std::vector<std::uint8_t> note_codes;
  std::vector<std::int32_t> note_values;

  std::int32_t token_budget_left = 0;
  std::int32_t input_budget_left = 0;
  std::int32_t num_free_blocks = 0;
  std::int32_t num_running = 0;
  std::int32_t num_waiting = 0;

  void reserve(std::size_t slices, std::size_t groups) {
    seq_ids.reserve(slices), num_scheduled.reserve(slices), num_computed.reserve(slices), num_tokens.reserve(slices);
    num_drafts.reserve(slices), samples.reserve(slices), clips.reserve(slices);
    block_starts.reserve(slices * groups), block_offsets.reserve(slices * groups + 1);
  }
  std::int32_t total_tokens() const {
    std::int32_t total = 0;
    for (const std::int32_t q : num_scheduled) total += q;
    return total;
  }
  StepSums sums() const {
    StepSums out;
    for (std::size_t i = 0; i < num_scheduled.size(); ++i) {
      const std::int64_t q = num_scheduled[i] - num_drafts[i];
      out.tokens += static_cast<std::int32_t>(q);
      out.decoding += q == 1;
      out.attended += q * num_computed[i] + q * (q + 1) / 2;
    }
    return out;
  }
  void note(SeqId seq, Note code, std::int32_t value) {
    note_seqs.push_back(seq);
    note_codes.push_back(static_cast<std::uint8_t>(code));
    note_values.push_back(value);
  }
};

}  // namespace headrace::core
