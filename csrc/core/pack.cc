#include "core/pack.h"

#include <algorithm>
#include <string>

namespace headrace::core {
namespace {

void require(bool condition, const char* field, const std::string& reason) {
  if (!condition) throw InvalidField(field, reason);
}

std::int32_t sum(std::span<const std::int32_t> values) {
  std::int32_t total = 0;
  for (const std::int32_t value : values) total += value;
  return total;
}

}  // namespace

const RowTable::Row& RowTable::row(SeqId id) const {
  const auto it = rows_.find(id);
  require(it != rows_.end(), "seq_ids", "sequence " + std::to_string(id) + " was never introduced");
  return it->second;
}

const std::vector<Token>* RowTable::tokens(SeqId id) const {
  const auto it = rows_.find(id);
  return it == rows_.end() ? nullptr : &it->second.tokens;
}

void RowTable::append(SeqId id, std::span<const Token> tokens) {
  const auto it = rows_.find(id);
  if (it != rows_.end()) it->second.tokens.insert(it->second.tokens.end(), tokens.begin(), tokens.end());
}

void RowTable::apply(const PlanView& plan) {
  const std::size_t rows = plan.seq_ids.size() * num_groups_;
  require(plan.fresh_offsets.size() == plan.fresh_slices.size() + 1, "fresh_offsets", "does not fit fresh_slices");
  require(plan.block_starts.size() == rows && plan.block_offsets.size() == rows + 1, "block_offsets",
          "does not fit slices x groups");
  for (const SeqId id : plan.dropped) rows_.erase(id), previous_.erase(id);
  for (std::size_t f = 0; f < plan.fresh_slices.size(); ++f) {
    const auto slice = static_cast<std::size_t>(plan.fresh_slices[f]);
    require(slice < plan.seq_ids.size(), "fresh_slices", "names a slice that is not there");
    Row& fresh = rows_[plan.seq_ids[slice]];
    const auto tokens = plan.fresh_tokens.subspan(plan.fresh_offsets[f], plan.fresh_offsets[f + 1] - plan.fresh_offsets[f]);
    fresh.tokens.assign(tokens.begin(), tokens.end());
    fresh.blocks.assign(num_groups_, {});
  }
  for (std::size_t i = 0; i < rows; ++i) {
    row(plan.seq_ids[i / num_groups_]);
    auto& blocks = rows_[plan.seq_ids[i / num_groups_]].blocks[i % num_groups_];
    require(plan.block_starts[i] <= static_cast<std::int32_t>(blocks.size()), "block_starts", "leaves a gap");
    blocks.resize(plan.block_starts[i]);
    const auto more = plan.block_ids.subspan(plan.block_offsets[i], plan.block_offsets[i + 1] - plan.block_offsets[i]);
    blocks.insert(blocks.end(), more.begin(), more.end());
  }
}

std::int32_t RowTable::max_blocks(const PlanView& plan) const {
  std::size_t most = 1;
  for (const SeqId id : plan.seq_ids)
    for (const auto& blocks : row(id).blocks) most = std::max(most, blocks.size());
  return static_cast<std::int32_t>(most);
}

std::int32_t RowTable::num_logits(const PlanView& plan) {
  return static_cast<std::int32_t>(plan.seq_ids.size()) + sum(plan.num_drafts);
}

// Input ids of one slice: known tokens, then drafts; what a step in flight is still sampling stays unknown.
void RowTable::pack_tokens(const PlanView& plan, const PackBuffers& out, std::size_t slice, std::int32_t first) {
  const Row& r = row(plan.seq_ids[slice]);
  const std::int32_t start = plan.num_computed[slice], q = plan.num_scheduled[slice];
  const std::int32_t drafts = plan.num_drafts[slice];
  const std::int32_t draft_base = sum(plan.num_drafts.first(slice));
  for (std::int32_t i = 0; i < q; ++i) {
    const std::int32_t position = start + i;
    const bool is_draft = i >= q - drafts;
    Token token = kUnknownToken;
    if (is_draft) {
      token = plan.draft_tokens[draft_base + i - (q - drafts)];
    } else if (position < static_cast<std::int32_t>(r.tokens.size())) {
      token = r.tokens[position];
    }
    out.input_ids[first + i] = token;
    out.positions[first + i] = position;
    out.request_index[first + i] = static_cast<std::int32_t>(slice);
  }
}

void RowTable::pack_blocks(const Row& r, const PackBuffers& out, std::size_t slice, std::int32_t first,
                           std::int32_t position, std::int32_t length, std::size_t num_slices) const {
  const std::size_t num_tokens = out.positions.size();
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    const auto& blocks = r.blocks[g];
    require((position + length - 1) / block_size_ < static_cast<std::int32_t>(blocks.size()), "block_ids",
            "a slice reaches beyond its blocks");
    const auto table = out.block_tables.subspan((g * num_slices + slice) * out.max_blocks, out.max_blocks);
    std::copy(blocks.begin(), blocks.end(), table.begin());
    std::fill(table.begin() + static_cast<std::ptrdiff_t>(blocks.size()), table.end(), kNullBlock);
    for (std::int32_t i = 0; i < length; ++i) {
      const std::int32_t p = position + i;
      out.slots[g * num_tokens + first + i] = blocks[p / block_size_] * block_size_ + p % block_size_;
    }
  }
}

void RowTable::pack(const PlanView& plan, const PackBuffers& out) {
  const std::size_t num_slices = plan.seq_ids.size();
  const auto num_tokens = static_cast<std::size_t>(sum(plan.num_scheduled));
  require(out.input_ids.size() == num_tokens && out.positions.size() == num_tokens &&
              out.request_index.size() == num_tokens && out.slots.size() == num_tokens * num_groups_ &&
              out.query_start_loc.size() == num_slices + 1 && out.seq_lens.size() == num_slices &&
              out.discard.size() == num_slices && out.prev_positions.size() == num_slices &&
              out.logits_indices.size() == static_cast<std::size_t>(num_logits(plan)) &&
              out.block_tables.size() == num_slices * num_groups_ * out.max_blocks && out.max_blocks >= max_blocks(plan),
          "buffers", "do not fit the plan");
  std::unordered_map<SeqId, std::int32_t> order;
  std::int32_t first = 0, logits = 0;
  out.query_start_loc[0] = 0;
  for (std::size_t s = 0; s < num_slices; ++s) {
    const SeqId id = plan.seq_ids[s];
    const std::int32_t q = plan.num_scheduled[s];
    pack_tokens(plan, out, s, first);
    pack_blocks(row(id), out, s, first, plan.num_computed[s], q, num_slices);
    out.query_start_loc[s + 1] = first + q;
    out.seq_lens[s] = plan.num_computed[s] + q;
    for (std::int32_t d = plan.num_drafts[s]; d >= 0; --d) out.logits_indices[logits++] = first + q - 1 - d;
    out.discard[s] = !plan.samples[s];
    const auto before = previous_.find(id);
    out.prev_positions[s] = before == previous_.end() ? -1 : before->second;
    order[id] = static_cast<std::int32_t>(s);
    first += q;
  }
  previous_ = std::move(order);
}

}  // namespace headrace::core
