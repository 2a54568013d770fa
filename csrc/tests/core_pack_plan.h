// Plans made by hand for one KV group, and the batches they are packed into.
#pragma once

#include <algorithm>

#include "core/pack.h"
#include "tests/check.h"

namespace headrace::testing {

using namespace headrace::core;
using Ints = std::vector<std::int32_t>;

// A plan for one KV group whose arrays live here.
struct Plan {
  std::vector<SeqId> seq_ids, dropped;
  Ints num_scheduled, num_computed, num_drafts, draft_tokens;
  std::vector<std::uint8_t> samples;
  StepKind kind = StepKind::kMixed;
  Ints fresh_slices, fresh_offsets{0}, fresh_tokens, block_starts, block_offsets{0}, block_ids;

  Plan& slice(SeqId id, std::int32_t q, std::int32_t computed, Ints blocks, std::int32_t start = 0) {
    seq_ids.push_back(id), num_scheduled.push_back(q), num_computed.push_back(computed);
    num_drafts.push_back(0), samples.push_back(1), block_starts.push_back(start);
    block_ids.insert(block_ids.end(), blocks.begin(), blocks.end());
    block_offsets.push_back(static_cast<std::int32_t>(block_ids.size()));
    return *this;
  }
  Plan& fresh(Ints tokens) {  // the slice just added
    fresh_slices.push_back(static_cast<std::int32_t>(seq_ids.size()) - 1);
    fresh_tokens.insert(fresh_tokens.end(), tokens.begin(), tokens.end());
    fresh_offsets.push_back(static_cast<std::int32_t>(fresh_tokens.size()));
    return *this;
  }
  Plan& drafts(Ints tokens) {
    num_drafts.back() = static_cast<std::int32_t>(tokens.size());
    draft_tokens.insert(draft_tokens.end(), tokens.begin(), tokens.end());
    return *this;
  }
  PlanView view() const {
    return {seq_ids,       num_scheduled, num_computed, num_drafts,    draft_tokens, samples, fresh_slices,
            fresh_offsets, fresh_tokens,  block_starts, block_offsets, block_ids,    dropped, kind};
  }
};

// `shared` where ranks share the step.
struct Batch {
  Ints input_ids, request_index, positions, query_start_loc, seq_lens, logits_indices, prev_positions, tables, slots;
  Ints gather_index;
  std::vector<std::uint8_t> discard;
  std::int32_t width = 0;

  Batch(RowTable& rows, const Plan& plan, bool shared = false) {
    const PlanView view = plan.view();
    std::size_t tokens = 0;
    for (const std::int32_t q : plan.num_scheduled) tokens += q;
    const std::size_t slices = plan.seq_ids.size();
    width = rows.max_blocks(view);
    const auto own = static_cast<std::size_t>(rows.num_rows(view));
    for (Ints* array : {&input_ids, &request_index, &positions}) array->resize(own);
    slots.resize(tokens), gather_index.resize(shared ? tokens : 0);
    for (Ints* array : {&seq_lens, &prev_positions}) array->resize(slices);
    query_start_loc.resize(slices + 1), discard.resize(slices), tables.resize(slices * width);
    logits_indices.resize(rows.num_logits(view));
    rows.pack(view, buffers());
  }
  PackBuffers buffers() {
    return {input_ids, request_index,  positions, query_start_loc, seq_lens,     logits_indices,
            discard,   prev_positions, tables,    slots,           gather_index, width};
  }
};

}  // namespace headrace::testing
