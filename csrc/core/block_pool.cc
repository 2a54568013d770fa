#include "core/block_pool.h"

#include <tuple>

namespace headrace::core {

BlockPool::BlockPool(std::int32_t num_blocks, bool caching) : caching_(caching) {
  if (num_blocks < 2) throw InvalidField("num_blocks", "at least 2 are needed (one is the null block)");
  blocks_.resize(num_blocks);
  for (BlockId b = 1; b < num_blocks; ++b) push_tail(b);
}

void BlockPool::unlink(BlockId block) {
  Block& b = blocks_[block];
  blocks_[b.prev].next = b.next;
  blocks_[b.next].prev = b.prev;
  b.prev = b.next = kNullBlock;
  b.linked = false;
  --num_free_;
}

void BlockPool::link_after(BlockId place, BlockId block) {
  const BlockId next = blocks_[place].next;
  blocks_[block].prev = place;
  blocks_[block].next = next;
  blocks_[place].next = block;
  blocks_[next].prev = block;
  blocks_[block].linked = true;
  ++num_free_;
}

std::vector<BlockId> BlockPool::allocate(std::int32_t count) {
  if (count < 0 || count > num_free_) throw std::logic_error("block pool: allocation beyond the free blocks");
  std::vector<BlockId> out;
  out.reserve(count);
  for (std::int32_t i = 0; i < count; ++i) {
    const BlockId head = blocks_[kNullBlock].next;
    unlink(head);
    forget(head);
    blocks_[head].ref_count = 1;
    blocks_[head].evict_first = false;
    out.push_back(head);
  }
  return out;
}

void BlockPool::touch(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) std::ignore = blocks_.at(block);  // a bad one throws before anything changes
  for (const BlockId block : blocks)
    if (block != kNullBlock && blocks_[block].ref_count++ == 0) unlink(block);
}

void BlockPool::check_returns(std::span<const BlockId> blocks) {
  bool sound = true;
  for (const BlockId block : blocks) {
    if (block == kNullBlock) continue;
    if (block < 0 || block >= static_cast<BlockId>(blocks_.size())) {
      sound = false;
    } else if (++blocks_[block].returning > blocks_[block].ref_count) {
      sound = false;
    }
  }
  for (const BlockId block : blocks)
    if (block > 0 && block < static_cast<BlockId>(blocks_.size())) blocks_[block].returning = 0;
  if (!sound) throw std::logic_error("block pool: a block is freed more often than it is held");
}

void BlockPool::free(std::span<const BlockId> blocks) {
  check_returns(blocks);
  for (const BlockId block : blocks) {
    if (block == kNullBlock) continue;
    Block& b = blocks_[block];
    if (--b.ref_count > 0) continue;
    if (b.node && !b.evict_first) {
      push_tail(block);
    } else {
      push_head(block);
    }
  }
}

ChainNodePtr BlockPool::name(BlockId block, const ChainNodePtr& node, std::int32_t group) {
  Block& b = blocks_.at(block);
  if (b.ref_count == 0) throw std::logic_error("block pool: only a block in use can be named");
  if (!caching_ || b.node) return node;
  b.node = index_.insert(node, group, block);
  b.group = group;
  return b.node;
}

void BlockPool::forget(BlockId block) {
  Block& b = blocks_.at(block);
  if (!b.node) return;
  index_.erase(b.node, b.group, block);
  b.node.reset();
  if (!b.linked) return;
  unlink(block);
  push_head(block);
}

void BlockPool::evict_first(BlockId block) {
  Block& b = blocks_.at(block);
  b.evict_first = true;
  if (!b.linked) return;
  unlink(block);
  push_head(block);
}

BlockId BlockPool::find(const ChainNodePtr& node, std::int32_t group, ChainNodePtr* canonical) const {
  return caching_ ? index_.find(node, group, canonical) : kNullBlock;
}

void BlockPool::forget_all() {
  for (Block& b : blocks_) b.node.reset();
  index_.clear();
}

std::vector<BlockId> BlockPool::free_queue() const {
  std::vector<BlockId> out;
  for (BlockId b = blocks_[kNullBlock].next; b != kNullBlock; b = blocks_[b].next) out.push_back(b);
  return out;
}

}  // namespace headrace::core
