#include "core/allocator.h"

#include <algorithm>
#include <limits>

namespace headrace::core {

namespace {

// Slot numbers (block * block_size + offset) are 32-bit in every kernel.
std::int32_t checked_blocks(std::int32_t num_blocks, std::int32_t block_size) {
  if (block_size < 1 || block_size > kMostOfAnything) throw InvalidField("block_size", "must be at least 1 and sane");
  if (std::int64_t{num_blocks} * block_size > std::numeric_limits<std::int32_t>::max())
    throw InvalidField("num_blocks", "num_blocks * block_size must stay below 2^31: slots are 32-bit");
  return num_blocks;
}

std::vector<GroupSpec> checked_groups(std::vector<GroupSpec> groups) {
  if (groups.empty()) throw InvalidField("groups", "at least one KV group is needed");
  for (const GroupSpec& group : groups) {
    if (group.kind != GroupKind::kFull && group.kind != GroupKind::kSliding)
      throw InvalidField("groups", "a kind is 0 (full) or 1 (sliding)");
    if ((group.kind == GroupKind::kSliding) != (group.window > 0) || group.window > kMostOfAnything)
      throw InvalidField("groups", "a window (at least 1) belongs to sliding groups and only to them");
  }
  return groups;
}

}  // namespace

Allocator::Allocator(std::int32_t num_blocks, std::int32_t block_size, std::vector<GroupSpec> groups, bool caching,
                     HashKind hash)
    : block_size_(block_size),
      groups_(checked_groups(std::move(groups))),
      pool_(checked_blocks(num_blocks, block_size), caching),
      hash_(hash) {}

std::int32_t Allocator::first_visible(const GroupSpec& group, std::int32_t position) const {
  return group.kind == GroupKind::kFull ? 0 : std::max(0, position - group.window + 1);
}

void Allocator::extend_chain(Sequence& seq) {
  if (!pool_.caching()) return;
  const auto known = static_cast<std::int32_t>(seq.tokens.size());
  while (static_cast<std::int32_t>(seq.chain.size() + 1) * block_size_ <= known) {
    const auto start = static_cast<std::int32_t>(seq.chain.size()) * block_size_;
    const std::span<const Token> tokens(seq.tokens.data() + start, block_size_);
    ChainNodePtr parent = seq.chain.empty() ? nullptr : seq.chain.back();
    seq.chain.push_back(make_node(std::move(parent), tokens, encode_extras(seq.spec.keys, start, block_size_), hash_));
  }
}

// A full group needs every block of the prefix, so the first one missing ends it. Asked again for less, it answers
// from what it found. The sequence's chain takes over the nodes that the index holds: equal ones, which the next lookup
// then knows by their address.
std::int32_t Allocator::full_hit(Sequence& seq, std::int32_t group, std::int32_t asked, Hit* hit) const {
  std::vector<BlockId>& blocks = hit->blocks[group];
  if (static_cast<std::int32_t>(blocks.size()) >= asked) {
    blocks.resize(asked);
    return asked;
  }
  blocks.clear();
  blocks.reserve(asked);
  for (std::int32_t i = 0; i < asked; ++i) {
    const BlockId block = pool_.find(seq.chain[i], group, &seq.chain[i]);
    if (block == kNullBlock) break;
    blocks.push_back(block);
  }
  return static_cast<std::int32_t>(blocks.size());
}

// A sliding group needs only what the next position sees. From the end backwards, so that each block is looked up
// once: a missing block rules out every end whose window reaches it, and those are the ends behind it.
std::int32_t Allocator::sliding_hit(const Sequence& seq, std::int32_t group, std::int32_t asked, Hit* hit) const {
  std::vector<BlockId>& blocks = hit->blocks[group];
  blocks.assign(asked, kNullBlock);
  const auto first_needed = [&](std::int32_t end) {
    return first_visible(groups_[group], end * block_size_) / block_size_;
  };
  std::int32_t end = asked;
  for (std::int32_t i = asked - 1; i >= first_needed(end); --i) {
    blocks[i] = pool_.find(seq.chain[i], group);
    if (blocks[i] == kNullBlock) end = i;
  }
  blocks.resize(end);
  std::fill_n(blocks.begin(), first_needed(end), kNullBlock);
  return end;
}

// Shortens *num_blocks to what this group can serve; true when it serves all that was asked.
bool Allocator::group_hit(Sequence& seq, std::int32_t group, std::int32_t* num_blocks, Hit* hit) const {
  const std::int32_t asked = *num_blocks;
  const bool full = groups_[group].kind == GroupKind::kFull;
  *num_blocks = full ? full_hit(seq, group, asked, hit) : sliding_hit(seq, group, asked, hit);
  return *num_blocks == asked;
}

Hit Allocator::find_hit(Sequence& seq) {
  Hit hit;
  hit.blocks.resize(groups_.size());
  if (!pool_.caching() || !seq.spec.reads_cache) return hit;
  extend_chain(seq);
  const auto known = static_cast<std::int32_t>(seq.tokens.size());
  std::int32_t length = std::min<std::int32_t>(seq.chain.size(), (known - 1) / block_size_);
  // Each group may shorten the prefix, and a shorter one asks the others anew: repeat until all agree.
  for (bool agreed = false; !agreed && length > 0;) {
    agreed = true;
    for (std::int32_t g = 0; g < num_groups(); ++g) agreed = group_hit(seq, g, &length, &hit) && agreed;
  }
  if (length == 0)
    for (auto& blocks : hit.blocks) blocks.clear();
  hit.num_tokens = length * block_size_;
  return hit;
}

std::int64_t Allocator::peak_blocks(std::int32_t num_tokens, std::int32_t slice) const {
  std::int64_t total = 0;
  for (const GroupSpec& group : groups_) {
    std::int32_t blocks = ceil_div(num_tokens, block_size_);
    if (group.kind == GroupKind::kSliding)
      blocks = std::min(blocks, ceil_div(group.window - 1 + slice, block_size_) + 1);
    total += blocks;
  }
  return total;
}

std::int32_t Allocator::capacity_tokens(std::int32_t slice) const {
  std::int32_t low = 0, high = pool_.num_blocks() * block_size_;
  while (low < high) {
    const std::int32_t middle = low + (high - low + 1) / 2;
    if (peak_blocks(middle, slice) <= pool_.num_blocks()) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// num_valid, not num_computed: a rejected draft may move the sequence back, and the window must still reach then.
std::int32_t Allocator::passed_end(const Sequence& seq, std::int32_t group) const {
  if (groups_[group].kind != GroupKind::kSliding) return 0;
  const std::int32_t first = first_visible(groups_[group], seq.ledger.num_valid());
  return std::min<std::int32_t>(first / block_size_, seq.blocks[group].size());
}

// Shared blocks come free only with their last reference.
std::int32_t Allocator::num_releasable(const Sequence& seq) const {
  std::int32_t count = 0;
  for (std::int32_t g = 0; g < num_groups(); ++g)
    for (std::int32_t i = passed_end(seq, g) - 1; i >= 0 && seq.blocks[g][i] != kNullBlock; --i)
      count += pool_.ref_count(seq.blocks[g][i]) == 1;
  return count;
}

void Allocator::release_behind_windows(Sequence& seq) {
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const std::int32_t end = passed_end(seq, g);
    std::vector<BlockId> passed;
    for (std::int32_t i = end - 1; i >= 0 && seq.blocks[g][i] != kNullBlock; --i) {
      passed.push_back(seq.blocks[g][i]);
      seq.blocks[g][i] = kNullBlock;
    }
    pool_.free(passed);
  }
}

std::int32_t Allocator::missing(const Sequence& seq, std::int32_t num_new, std::int32_t lookahead, const Hit* hit,
                                std::int32_t reserve) const {
  const std::int32_t start = hit ? hit->num_tokens : seq.ledger.num_computed();
  const std::int32_t target = ceil_div(start + num_new + lookahead, block_size_);
  std::int32_t fresh = 0, revived = 0;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const auto held = static_cast<std::int32_t>(hit ? hit->blocks[g].size() : seq.blocks[g].size());
    fresh += std::max(0, target - held);
    if (!hit) continue;
    for (const BlockId block : hit->blocks[g]) revived += block != kNullBlock && pool_.is_free(block);
  }
  if (fresh + revived == 0) return 0;  // a reserve is no reason to stop somebody who takes nothing
  return std::max(0, fresh + revived + reserve - pool_.num_free() - num_releasable(seq));
}

std::int32_t Allocator::allocate(Sequence& seq, std::int32_t num_new, std::int32_t lookahead, const Hit* hit,
                                 std::int32_t reserve) {
  release_behind_windows(seq);
  if (const std::int32_t lacking = missing(seq, num_new, lookahead, hit, reserve); lacking > 0) return lacking;
  const std::int32_t start = hit ? hit->num_tokens : seq.ledger.num_computed();
  const std::int32_t target = ceil_div(start + num_new + lookahead, block_size_);
  if (hit) {
    for (std::int32_t g = 0; g < num_groups(); ++g) {
      pool_.touch(hit->blocks[g]);
      seq.blocks[g] = hit->blocks[g];
      seq.num_named[g] = static_cast<std::int32_t>(hit->blocks[g].size());
    }
  }
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const auto count = std::max<std::int32_t>(0, target - static_cast<std::int32_t>(seq.blocks[g].size()));
    const std::vector<BlockId> more = pool_.allocate(count);
    seq.blocks[g].insert(seq.blocks[g].end(), more.begin(), more.end());
  }
  return 0;
}

bool Allocator::covers(const Sequence& parent, std::int32_t num_tokens) const {
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const bool sliding = groups_[g].kind == GroupKind::kSliding;
    const std::int32_t first = sliding ? first_visible(groups_[g], num_tokens) / block_size_ : 0;
    for (std::int32_t i = first; i < ceil_div(num_tokens, block_size_); ++i)
      if (parent.blocks[g][i] == kNullBlock) return false;
  }
  return true;
}

void Allocator::share(const Sequence& parent, Sequence& child, std::int32_t num_tokens) {
  const std::int32_t full = num_tokens / block_size_;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const auto& blocks = parent.blocks[g];
    child.blocks[g].assign(blocks.begin(), blocks.begin() + ceil_div(num_tokens, block_size_));
    pool_.touch(child.blocks[g]);
    child.num_named[g] = std::min(parent.num_named[g], full);
  }
  child.chain.assign(parent.chain.begin(), parent.chain.begin() + std::min<std::ptrdiff_t>(full, parent.chain.size()));
  child.shares_last_block = num_tokens % block_size_ != 0;
}

std::int32_t Allocator::clone_last(Sequence& seq, std::vector<BlockId>& pairs) {
  std::int32_t lacking = -pool_.num_free();
  for (const auto& blocks : seq.blocks) lacking += pool_.ref_count(blocks.back()) > 1;
  if (lacking > 0) return lacking;
  for (auto& blocks : seq.blocks) {
    const BlockId from = blocks.back();
    if (pool_.ref_count(from) == 1) {  // the others are gone: it need not be copied, but its name is theirs
      pool_.forget(from);
      continue;
    }
    const BlockId to = pool_.allocate(1).front();
    blocks.back() = to;
    pool_.free(std::span(&from, 1));
    pairs.push_back(from), pairs.push_back(to);
  }
  seq.shares_last_block = false;
  return 0;
}

std::int32_t Allocator::free(Sequence& seq) {
  std::int32_t count = 0;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    auto& blocks = seq.blocks[g];
    count += static_cast<std::int32_t>(std::count_if(blocks.begin(), blocks.end(), [](BlockId b) { return b != 0; }));
    std::reverse(blocks.begin(), blocks.end());
    pool_.free(blocks);
    blocks.clear();
    seq.num_named[g] = 0;
  }
  seq.shares_last_block = false;
  return count;
}

std::vector<ImportedBlock> Allocator::import_prefix(Sequence& seq, std::int32_t num_tokens, std::int32_t first,
                                                    std::int32_t reserve) {
  if (!pool_.caching() || !seq.spec.reads_cache) return {};
  extend_chain(seq);
  const auto known = static_cast<std::int32_t>(seq.tokens.size());
  const std::int32_t end = std::min<std::int32_t>(seq.chain.size(), std::min(num_tokens, known - 1) / block_size_);
  std::vector<ImportedBlock> imported;
  std::vector<BlockId> kept;  // what is here already must not be taken for what is not
  for (std::int32_t i = end - 1; i >= 0; --i)
    for (std::int32_t g = 0; g < num_groups(); ++g) {
      if (i < first_visible(groups_[g], end * block_size_) / block_size_) continue;
      const BlockId block = pool_.find(seq.chain[i], g);
      if (block != kNullBlock) kept.push_back(block);
      if (block == kNullBlock && i * block_size_ >= first) imported.push_back({g, i, kNullBlock});
    }
  pool_.touch(kept);
  if (static_cast<std::int32_t>(imported.size()) + reserve > pool_.num_free()) imported.clear();
  std::vector<BlockId> taken = pool_.allocate(static_cast<std::int32_t>(imported.size()));
  for (std::size_t i = 0; i < taken.size(); ++i) {
    imported[i].block = taken[i];
    pool_.name(taken[i], seq.chain[imported[i].position], imported[i].group);
  }
  pool_.free(taken);  // deepest first, and before what was here: a chain is reused from its end
  pool_.free(kept);
  return imported;
}

std::vector<BlockId> Allocator::name_blocks(Sequence& seq, std::int32_t num_tokens) {
  std::vector<BlockId> named;
  if (!pool_.caching()) return named;
  extend_chain(seq);
  const std::int32_t full = std::min<std::int32_t>(num_tokens / block_size_, seq.chain.size());
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const std::int32_t end = std::min<std::int32_t>(full, seq.blocks[g].size());
    for (std::int32_t i = seq.num_named[g]; i < end; ++i) {
      const BlockId block = seq.blocks[g][i];
      if (block == kNullBlock) continue;
      seq.chain[i] = pool_.name(block, seq.chain[i], g);
      named.push_back(block);
    }
    seq.num_named[g] = std::max(seq.num_named[g], end);
  }
  return named;
}

}  // namespace headrace::core
