// Blocks for sequences: demand, hits, all-or-nothing allocation, release behind sliding windows, naming of content.
// Works over one pool and several KV groups; decides nothing about who is served.
#pragma once

#include <vector>

#include "core/block_pool.h"
#include "core/sequence.h"

namespace headrace::core {

// A prefix found in the cache: the same number of tokens in every group.
struct Hit {
  std::int32_t num_tokens = 0;
  std::vector<std::vector<BlockId>> blocks;  // per group, kNullBlock where the group needs none
};

// A block that stands for content which is about to be copied into it.
struct ImportedBlock {
  std::int32_t group = 0;
  std::int32_t position = 0;  // in blocks from the sequence's start
  BlockId block = kNullBlock;
};

class Allocator {
 public:
  Allocator(std::int32_t num_blocks, std::int32_t block_size, std::vector<GroupSpec> groups, bool caching,
            HashKind hash);

  std::int32_t block_size() const { return block_size_; }
  std::int32_t num_groups() const { return static_cast<std::int32_t>(groups_.size()); }
  BlockPool& pool() { return pool_; }
  const BlockPool& pool() const { return pool_; }

  // The longest usable prefix. At least one token is left to compute. No side effect on the pool; the sequence's
  // chain may come to share nodes with what the pool holds.
  Hit find_hit(Sequence& seq);
  // Blocks held at once, over all groups, by a sequence of `num_tokens` of which `slice` at most are planned, in
  // flight or asked for ahead at any time.
  std::int64_t peak_blocks(std::int32_t num_tokens, std::int32_t slice) const;
  // The longest sequence that fits into an empty pool.
  std::int32_t capacity_tokens(std::int32_t slice) const;
  // Gives `seq` blocks for its computed tokens + `num_new` + `lookahead`, after releasing what its windows have
  // passed. `hit` (of an admission) is touched first. All or nothing; `reserve` blocks stay free. Returns the number
  // of blocks missing, 0 on success.
  std::int32_t allocate(Sequence& seq, std::int32_t num_new, std::int32_t lookahead, const Hit* hit,
                        std::int32_t reserve);
  // What allocate() would answer now; changes nothing.
  std::int32_t missing(const Sequence& seq, std::int32_t num_new, std::int32_t lookahead, const Hit* hit,
                       std::int32_t reserve) const;
  // Lets `child`, which holds nothing, share the blocks of `parent`'s first `num_tokens` positions, a half-written
  // last one included: that one must be cloned before the child writes.
  // `covers` says whether the parent still has all of them that a window of the child will look at.
  bool covers(const Sequence& parent, std::int32_t num_tokens) const;
  void share(const Sequence& parent, Sequence& child, std::int32_t num_tokens);
  // Exchanges the last block of every group, where others hold it too, for a new one; appends the pairs (from, to) to
  // copy. All or nothing; returns the number of blocks missing, 0 on success.
  std::int32_t clone_last(Sequence& seq, std::vector<BlockId>& pairs);
  // Returns every block. Sequence's chain stays, so that it can hit its own blocks again.
  std::int32_t free(Sequence& seq);
  // Extends the content chain over the full blocks of the tokens known now.
  void extend_chain(Sequence& seq);
  // Names the full blocks among the first `num_tokens` positions; returns those newly named.
  std::vector<BlockId> name_blocks(Sequence& seq, std::int32_t num_tokens);
  // Takes blocks for those of the positions [first, num_tokens) that the pool does not hold, names them after the
  // sequence's content and frees them at once: from now on they are hits, so their content must be written before any
  // later step runs. All or nothing; `reserve` blocks stay free; empty where nothing can or need be done.
  std::vector<ImportedBlock> import_prefix(Sequence& seq, std::int32_t num_tokens, std::int32_t first,
                                           std::int32_t reserve);
  std::vector<std::vector<BlockId>> held(const Sequence& seq) const { return seq.blocks; }

 private:
  // First position that a computation starting at `position` reads in this group.
  std::int32_t first_visible(const GroupSpec& group, std::int32_t position) const;
  bool group_hit(Sequence& seq, std::int32_t group, std::int32_t* num_blocks, Hit* hit) const;
  std::int32_t full_hit(Sequence& seq, std::int32_t group, std::int32_t asked, Hit* hit) const;
  std::int32_t sliding_hit(const Sequence& seq, std::int32_t group, std::int32_t asked, Hit* hit) const;
  // Blocks of a sliding group wholly behind what any later computation reads: [0, end) of its table.
  std::int32_t passed_end(const Sequence& seq, std::int32_t group) const;
  std::int32_t num_releasable(const Sequence& seq) const;
  void release_behind_windows(Sequence& seq);

  std::int32_t block_size_;
  std::vector<GroupSpec> groups_;
  BlockPool pool_;
  HashKind hash_;
};

}  // namespace headrace::core
