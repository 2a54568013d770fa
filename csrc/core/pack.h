// From a plan to the rows of a forward pass. RowTable is the worker's memory of its sequences (tokens and block
// tables); pack() turns the plan's slices into flat arrays that the caller owns. No scheduling decisions here.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/context_share.h"
#include "core/plan.h"

namespace headrace::core {

inline constexpr Token kUnknownToken = -1;        // sampled by a step in flight; filled in on the device side
inline constexpr Token kNothingDrawn = -2;        // of a row asked for a token that allowed none: its sequence ends
inline constexpr std::int32_t kForeignSlot = -1;  // of a row whose KV another context-parallel rank keeps

// Arrays to fill; sizes are checked. T = rows of this rank, W = rows of the step, S = slices, L = logits rows, G =
// groups. T and W differ only where ranks share a prompt step (ContextShare): T counts what this rank computes, and
// padding (id 0 at position 0, of no slot), so that all ranks have as many.
struct PackBuffers {
  std::span<std::int32_t> input_ids;        // (T,)
  std::span<std::int32_t> request_index;    // (T,) slice of each token
  std::span<std::int32_t> positions;        // (T,)
  std::span<std::int32_t> query_start_loc;  // (S+1,)
  std::span<std::int32_t> seq_lens;         // (S,)
  std::span<std::int32_t> logits_indices;   // (L,)
  std::span<std::uint8_t> discard;          // (S,) 1 = the slice's prefill is unfinished, its rows are not sampled
  std::span<std::int32_t> prev_positions;   // (S,) slice number in the previous step, -1 for fresh rows
  std::span<std::int32_t> block_tables;     // (G, S, max_blocks)
  std::span<std::int32_t> slots;            // (G, W) in the order of the plan; -1 for another rank's position
  // (W,) where ranks share the step: a row's place once the rows of all ranks lie one after another. Else empty.
  std::span<std::int32_t> gather_index;
  std::int32_t max_blocks = 0;
};

// The plan as the worker received it.
struct PlanView {
  std::span<const SeqId> seq_ids;
  std::span<const std::int32_t> num_scheduled, num_computed, num_drafts, draft_tokens;
  std::span<const std::uint8_t> samples;
  std::span<const std::int32_t> fresh_slices, fresh_offsets, fresh_tokens;
  std::span<const std::int32_t> block_starts, block_offsets, block_ids;
  std::span<const SeqId> dropped;
  StepKind kind = StepKind::kMixed;
};

class RowTable {
 public:
  // Sizes at least 1, the rank one of its ranks; throws InvalidField. Of several context-parallel ranks each packs its
  // share of prompt steps; decode steps are packed alike on all, MIXED ones refused.
  RowTable(std::int32_t block_size, std::int32_t num_groups, ContextShare share = {});

  // Takes over what a plan tells of rows: drops, new rows, more blocks. Throws InvalidField, and changes nothing, on
  // a plan that is not sound in itself or does not fit what is held.
  void apply(const PlanView& plan);
  // Longest block table among the plan's slices; at least 1.
  std::int32_t max_blocks(const PlanView& plan) const;
  // Rows this rank computes: T of PackBuffers.
  std::int32_t num_rows(const PlanView& plan) const;
  // Rows of logits the plan asks for: one per slice (the last), with drafts one per verified row. Where ranks share a
  // prompt step, only of slices whose last position is this rank's.
  std::int32_t num_logits(const PlanView& plan) const;
  // Fills every buffer and remembers the slices' order for the next step's prev_positions.
  void pack(const PlanView& plan, const PackBuffers& out);
  // Appends tokens that were sampled for a sequence; unknown sequences are passed over.
  void append(SeqId id, std::span<const Token> tokens);
  const std::vector<Token>* tokens(SeqId id) const;
  std::size_t size() const { return rows_.size(); }
  void clear() { rows_.clear(), previous_.clear(); }

 private:
  struct Row {
    std::vector<Token> tokens;
    std::vector<std::vector<BlockId>> blocks;
  };

  const Row& row(SeqId id) const;
  void check_shape(const PlanView& plan) const;
  void check_rows(const PlanView& plan) const;
  void check_buffers(const PlanView& plan, const PackBuffers& out) const;
  ContextShare share_of(const PlanView& plan) const;
  void pack_tokens(const PlanView& plan, const PackBuffers& out, const ContextShare& share, std::size_t slice,
                   std::int32_t first, std::int32_t draft_base) const;
  void pack_blocks(const Row& row, const PackBuffers& out, const ContextShare& share, std::size_t slice,
                   std::int32_t first, std::int32_t position, std::int32_t length, std::size_t num_slices) const;

  std::int32_t block_size_, num_groups_;
  ContextShare share_;
  std::unordered_map<SeqId, Row> rows_;
  std::unordered_map<SeqId, std::int32_t> previous_;
};

// Puts what the step before has sampled where a pack had to leave kUnknownToken, which is only in the last row of a
// slice: last_sampled[prev_positions[s]] for slice s, whose rows are starts[s] up to starts[s + 1]. After kNothingDrawn
// any token will do, for nobody waits for that row. Throws InvalidField, changing nothing, when an unknown token has no
// sampled one to stand for it.
void fill_unknown(std::span<Token> input_ids, std::span<const std::int32_t> starts,
                  std::span<const std::int32_t> prev_positions, std::span<const Token> last_sampled);

}  // namespace headrace::core
