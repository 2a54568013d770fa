#include "core/pack.h"

#include <algorithm>
#include <limits>
#include <string>
#include <unordered_set>

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

// Offsets that cut `size` entries into `rows` rows.
bool cuts(std::span<const std::int32_t> offsets, std::size_t rows, std::size_t size) {
  return offsets.size() == rows + 1 && offsets.front() == 0 && offsets.back() == static_cast<std::int64_t>(size) &&
         std::is_sorted(offsets.begin(), offsets.end());
}

// For an exchange: where each row of a slice stands once all ranks' rows, `num_rows` of each, lie one after another.
void pack_gather(std::span<std::int32_t> index, const ContextShare& share, std::int32_t num_rows, std::int32_t first,
                 std::int32_t start) {
  for (std::size_t i = 0; i < index.size(); ++i) {
    const std::int32_t position = start + static_cast<std::int32_t>(i), owner = share.owner(position);
    const std::int32_t row = first + share.owned_before(position, owner) - share.owned_before(start, owner);
    index[i] = owner * num_rows + row;
  }
}

}  // namespace

RowTable::RowTable(std::int32_t block_size, std::int32_t num_groups, ContextShare share)
    : block_size_(block_size), num_groups_(num_groups), share_(share) {
  require(block_size >= 1, "block_size", "must be at least 1");
  require(num_groups >= 1, "num_groups", "must be at least 1");
  require(share.size >= 1 && share.size <= kMostOfAnything, "cp_size", "must be at least 1");
  require(share.rank >= 0 && share.rank < share.size, "cp_rank", "must be below cp_size");
}

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

// Everything about a plan that can be told without the rows held. A plan may have come over a wire.
void RowTable::check_shape(const PlanView& plan) const {
  const std::size_t count = plan.seq_ids.size(), rows = count * num_groups_;
  require(plan.num_scheduled.size() == count && plan.num_computed.size() == count && plan.num_drafts.size() == count &&
              plan.samples.size() == count,
          "num_scheduled", "per-slice arrays differ in length");
  std::int64_t drafts = 0;
  for (std::size_t s = 0; s < count; ++s) {
    require(plan.num_scheduled[s] >= 1 && plan.num_scheduled[s] <= kMostOfAnything, "num_scheduled", "out of range");
    require(plan.num_computed[s] >= 0 && plan.num_computed[s] <= kMostOfAnything, "num_computed", "out of range");
    require(plan.num_drafts[s] >= 0 && plan.num_drafts[s] < plan.num_scheduled[s], "num_drafts", "out of range");
    drafts += plan.num_drafts[s];
  }
  require(drafts == static_cast<std::int64_t>(plan.draft_tokens.size()), "draft_tokens", "does not fit num_drafts");
  require(cuts(plan.fresh_offsets, plan.fresh_slices.size(), plan.fresh_tokens.size()), "fresh_offsets",
          "does not fit fresh_slices");
  for (const std::int32_t slice : plan.fresh_slices)
    require(slice >= 0 && static_cast<std::size_t>(slice) < count, "fresh_slices", "names a slice that is not there");
  require(plan.block_starts.size() == rows && cuts(plan.block_offsets, rows, plan.block_ids.size()), "block_offsets",
          "does not fit slices x groups");
  const std::int32_t most = std::numeric_limits<std::int32_t>::max() / block_size_;
  for (const std::int32_t block : plan.block_ids)
    require(block >= 0 && block < most, "block_ids", "out of range");  // its slots must be 32-bit
}

// What the plan takes for granted of the rows held.
void RowTable::check_rows(const PlanView& plan) const {
  std::unordered_set<SeqId> dropped(plan.dropped.begin(), plan.dropped.end()), fresh, seen;
  for (const std::int32_t slice : plan.fresh_slices) fresh.insert(plan.seq_ids[slice]);
  for (std::size_t s = 0; s < plan.seq_ids.size(); ++s) {
    const SeqId id = plan.seq_ids[s];
    require(seen.insert(id).second, "seq_ids", "sequence " + std::to_string(id) + " has two slices");
    const bool is_fresh = fresh.count(id) > 0;
    require(is_fresh || (rows_.count(id) && !dropped.count(id)), "seq_ids",
            "sequence " + std::to_string(id) + " was never introduced");
    for (std::int32_t g = 0; g < num_groups_; ++g) {
      const std::size_t held = is_fresh ? 0 : row(id).blocks[g].size();
      const std::int32_t start = plan.block_starts[s * num_groups_ + g];
      require(start >= 0 && static_cast<std::size_t>(start) <= held, "block_starts", "leaves a gap");
    }
  }
}

void RowTable::apply(const PlanView& plan) {
  check_shape(plan);
  check_rows(plan);
  for (const SeqId id : plan.dropped) rows_.erase(id), previous_.erase(id);
  for (std::size_t f = 0; f < plan.fresh_slices.size(); ++f) {
    const SeqId id = plan.seq_ids[plan.fresh_slices[f]];
    const auto tokens =
        plan.fresh_tokens.subspan(plan.fresh_offsets[f], plan.fresh_offsets[f + 1] - plan.fresh_offsets[f]);
    Row& fresh = rows_[id];
    fresh.tokens.assign(tokens.begin(), tokens.end());
    fresh.blocks.assign(num_groups_, {});
    previous_.erase(id);
  }
  for (std::size_t i = 0; i < plan.block_starts.size(); ++i) {
    auto& blocks = rows_.at(plan.seq_ids[i / num_groups_]).blocks[i % num_groups_];
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

// Who computes what of this plan: a whole of it unless it is a prompt step of several ranks.
ContextShare RowTable::share_of(const PlanView& plan) const {
  if (share_.size == 1 || plan.kind == StepKind::kDecode) return {};
  require(plan.kind == StepKind::kPrefill, "kind", "context-parallel ranks take prompt steps and decode steps only");
  require(plan.draft_tokens.empty(), "num_drafts", "a prompt step that ranks share verifies none");
  return share_;
}

std::int32_t RowTable::num_rows(const PlanView& plan) const {
  const ContextShare share = share_of(plan);
  std::int32_t rows = 0;
  for (const std::int32_t q : plan.num_scheduled) rows += share.rows(q);
  return rows;
}

std::int32_t RowTable::num_logits(const PlanView& plan) const {
  const ContextShare share = share_of(plan);
  std::int32_t rows = sum(plan.num_drafts);
  for (std::size_t s = 0; s < plan.seq_ids.size(); ++s)
    rows += share.owns(plan.num_computed[s] + plan.num_scheduled[s] - 1);
  return rows;
}

// Input ids of one slice: known tokens, then drafts; what a step in flight is still sampling stays unknown.
void RowTable::pack_tokens(const PlanView& plan, const PackBuffers& out, const ContextShare& share, std::size_t slice,
                           std::int32_t first, std::int32_t draft_base) const {
  const Row& r = row(plan.seq_ids[slice]);
  const std::int32_t start = plan.num_computed[slice], q = plan.num_scheduled[slice];
  const std::int32_t drafts = plan.num_drafts[slice], end = first + share.rows(q);
  // fill_unknown looks at a slice's last row only, which may be padding or another rank's. All ranks refuse alike.
  require(share.size == 1 || start + q <= static_cast<std::int32_t>(r.tokens.size()), "num_scheduled",
          "ranks can share known tokens only");
  std::fill(out.request_index.begin() + first, out.request_index.begin() + end, static_cast<std::int32_t>(slice));
  std::int32_t at = first;
  for (std::int32_t i = 0; i < q; ++i) {
    const std::int32_t position = start + i;
    if (!share.owns(position)) continue;
    const bool is_draft = i >= q - drafts;
    Token token = kUnknownToken;
    if (is_draft) {
      token = plan.draft_tokens[draft_base + i - (q - drafts)];
    } else if (position < static_cast<std::int32_t>(r.tokens.size())) {
      token = r.tokens[position];
    }
    out.input_ids[at] = token;
    out.positions[at++] = position;
  }
  for (; at < end; ++at) out.input_ids[at] = out.positions[at] = 0;
}

void RowTable::pack_blocks(const Row& r, const PackBuffers& out, const ContextShare& share, std::size_t slice,
                           std::int32_t first, std::int32_t position, std::int32_t length,
                           std::size_t num_slices) const {
  const std::size_t num_written = out.slots.size() / num_groups_;
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    const auto& blocks = r.blocks[g];
    require((position + length - 1) / block_size_ < static_cast<std::int32_t>(blocks.size()), "block_ids",
            "a slice reaches beyond its blocks");
    const auto table = out.block_tables.subspan((g * num_slices + slice) * out.max_blocks, out.max_blocks);
    std::copy(blocks.begin(), blocks.end(), table.begin());
    std::fill(table.begin() + static_cast<std::ptrdiff_t>(blocks.size()), table.end(), kNullBlock);
    for (std::int32_t i = 0; i < length; ++i) {
      const std::int32_t p = position + i;
      require(blocks[p / block_size_] != kNullBlock, "block_ids", "a slice writes where no block is held");
      const std::int32_t slot = blocks[p / block_size_] * block_size_ + p % block_size_;
      out.slots[g * num_written + first + i] = share.owns(p) ? slot : kForeignSlot;
    }
  }
}

void RowTable::check_buffers(const PlanView& plan, const PackBuffers& out) const {
  const std::size_t num_slices = plan.seq_ids.size();
  const auto num_tokens = static_cast<std::size_t>(num_rows(plan));
  const auto num_written = static_cast<std::size_t>(sum(plan.num_scheduled));
  const std::int32_t size = share_of(plan).size;
  require(num_tokens * size <= std::numeric_limits<std::int32_t>::max(), "cp_size", "too many rows over all ranks");
  require(out.input_ids.size() == num_tokens && out.positions.size() == num_tokens &&
              out.request_index.size() == num_tokens && out.slots.size() == num_written * num_groups_ &&
              out.gather_index.size() == (size > 1 ? num_written : 0) && out.query_start_loc.size() == num_slices + 1 &&
              out.seq_lens.size() == num_slices && out.discard.size() == num_slices &&
              out.prev_positions.size() == num_slices &&
              out.logits_indices.size() == static_cast<std::size_t>(num_logits(plan)) &&
              out.block_tables.size() == num_slices * num_groups_ * out.max_blocks &&
              out.max_blocks >= max_blocks(plan),
          "buffers", "do not fit the plan");
}

void RowTable::pack(const PlanView& plan, const PackBuffers& out) {
  check_shape(plan);
  check_buffers(plan, out);
  const ContextShare share = share_of(plan);
  const std::size_t num_slices = plan.seq_ids.size();
  const auto num_rows = static_cast<std::int32_t>(out.input_ids.size());
  std::unordered_map<SeqId, std::int32_t> order;
  std::int32_t first = 0, written = 0, logits = 0, draft_base = 0;
  out.query_start_loc[0] = 0;
  for (std::size_t s = 0; s < num_slices; ++s) {
    const SeqId id = plan.seq_ids[s];
    const std::int32_t q = plan.num_scheduled[s], start = plan.num_computed[s];
    pack_tokens(plan, out, share, s, first, draft_base);
    pack_blocks(row(id), out, share, s, written, start, q, num_slices);
    if (share.size > 1) pack_gather(out.gather_index.subspan(written, q), share, num_rows, first, start);
    const std::int32_t end = first + share.owned_before(start + q, share.rank) - share.owned_before(start, share.rank);
    out.query_start_loc[s + 1] = first + share.rows(q);
    out.seq_lens[s] = start + q;
    if (share.owns(start + q - 1))
      for (std::int32_t d = plan.num_drafts[s]; d >= 0; --d) out.logits_indices[logits++] = end - 1 - d;
    out.discard[s] = !plan.samples[s];
    const auto before = previous_.find(id);
    out.prev_positions[s] = before == previous_.end() ? -1 : before->second;
    order[id] = static_cast<std::int32_t>(s);
    first += share.rows(q), written += q, draft_base += plan.num_drafts[s];
  }
  previous_ = std::move(order);
}

void fill_unknown(std::span<Token> input_ids, std::span<const std::int32_t> starts,
                  std::span<const std::int32_t> prev_positions, std::span<const Token> last_sampled) {
  const auto refuse = [](const char* why) { throw InvalidField("input_ids", why); };
  std::size_t unknown = 0;
  for (const Token id : input_ids) unknown += id == kUnknownToken;
  std::vector<std::pair<std::size_t, Token>> found;
  for (std::size_t s = 0; s < prev_positions.size() && unknown > found.size(); ++s) {
    const auto row = static_cast<std::size_t>(starts[s + 1]) - 1;
    if (starts[s] == starts[s + 1] || input_ids[row] != kUnknownToken) continue;
    const auto before = static_cast<std::size_t>(prev_positions[s]);
    if (prev_positions[s] < 0 || before >= last_sampled.size()) refuse("the step before did not have its sequence");
    const Token sampled = last_sampled[before];
    if (sampled < 0 && sampled != kNothingDrawn) refuse("the step before sampled nothing for a sequence that goes on");
    found.emplace_back(row, std::max<Token>(0, sampled));
  }
  if (found.size() != unknown) refuse("an unknown token that is not the last of its slice");
  for (const auto& [row, token] : found) input_ids[row] = token;
}

}  // namespace headrace::core
