// The pool of KV blocks: reference counts, the free queue, and the content names of blocks.
// A block with no reference stays a valid hit until it is handed out again: free does not mean forgotten.
// Block 0 is the null block: it stands for "not held", is never handed out and never counted.
#pragma once

#include <span>
#include <vector>

#include "core/prefix_index.h"

namespace headrace::core {

class BlockPool {
 public:
  // num_blocks counts the null block; at least 2.
  BlockPool(std::int32_t num_blocks, bool caching);

  std::int32_t num_blocks() const { return static_cast<std::int32_t>(blocks_.size()) - 1; }
  std::int32_t num_free() const { return num_free_; }
  std::int32_t num_used() const { return num_blocks() - num_free_; }
  bool caching() const { return caching_; }
  std::int32_t ref_count(BlockId block) const { return blocks_.at(block).ref_count; }
  bool is_free(BlockId block) const { return blocks_.at(block).ref_count == 0; }
  const ChainNodePtr& content(BlockId block) const { return blocks_.at(block).node; }

  // Pops `count` blocks from the head of the free queue, each with one reference and no content.
  // Throws std::logic_error when fewer are free: callers ask num_free() first.
  std::vector<BlockId> allocate(std::int32_t count);
  // One more reference for each block; a free one leaves the free queue. Null blocks are passed over. Throws
  // std::out_of_range and changes nothing when a block does not exist.
  void touch(std::span<const BlockId> blocks);
  // One reference less for each block, in the given order. Blocks that reach zero join the free queue: named ones
  // at the tail (pass a chain in reverse so that its deepest block is reused first), unnamed or evict-first ones at
  // the head. Throws std::logic_error and changes nothing when a block has fewer references than the call returns.
  void free(std::span<const BlockId> blocks);
  // Names the content of a block that is in use (std::logic_error otherwise: a free block's content is not being
  // written by anyone). Returns the canonical node. No effect when caching is off or the block has a name.
  ChainNodePtr name(BlockId block, const ChainNodePtr& node, std::int32_t group);
  // Takes a name back; a free block moves to the head of the free queue.
  void forget(BlockId block);
  // Marks a block to be reused before any named one once it is free.
  void evict_first(BlockId block);
  // The block with this content, or kNullBlock.
  BlockId find(const ChainNodePtr& node, std::int32_t group, ChainNodePtr* canonical = nullptr) const;
  // Forgets every name. Blocks in use stay in use.
  void forget_all();

  std::vector<BlockId> free_queue() const;  // head first; for tests and explanations

 private:
  struct Block {
    std::int32_t ref_count = 0;
    std::int32_t returning = 0;                    // scratch of free()
    BlockId prev = kNullBlock, next = kNullBlock;  // in the free queue; block 0 is its sentinel
    ChainNodePtr node;
    std::int32_t group = 0;
    bool evict_first = false;
    bool linked = false;  // in the free queue
  };

  void unlink(BlockId block);
  void link_after(BlockId place, BlockId block);
  void push_head(BlockId block) { link_after(kNullBlock, block); }
  void push_tail(BlockId block) { link_after(blocks_[kNullBlock].prev, block); }
  void check_returns(std::span<const BlockId> blocks);

  std::vector<Block> blocks_;
  PrefixIndex index_;
  std::int32_t num_free_ = 0;
  bool caching_;
};

}  // namespace headrace::core
