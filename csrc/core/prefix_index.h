// Which blocks hold which content: (chain node, group) -> block ids. Content decides, not the digest alone.
// Never owns blocks; the pool tells it what to forget.
#pragma once

#include <cstring>
#include <set>
#include <unordered_map>

#include "core/chain.h"

namespace headrace::core {

class PrefixIndex {
 public:
  PrefixIndex() = default;
  ~PrefixIndex() { clear(); }
  PrefixIndex(const PrefixIndex&) = delete;  // nodes point at entries
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // The lowest-numbered block with exactly this content in this group, or kNullBlock. `canonical` gets the node the
  // entry is held under, so that a caller can share it and later comparisons are pointer comparisons.
  BlockId find(const ChainNodePtr& node, std::int32_t group, ChainNodePtr* canonical = nullptr) const;
  // Adds a block and returns the node it is held under (an equal one that was there before, if any).
  ChainNodePtr insert(const ChainNodePtr& node, std::int32_t group, BlockId block);
  // Takes a block out; nothing happens when it is not held under this node.
  void erase(const ChainNodePtr& node, std::int32_t group, BlockId block);
  // Contents held, each with one block or more.
  std::size_t size() const { return entries_.size(); }
  void clear();

 private:
  struct Key {
    Digest digest;
    std::int32_t group;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const {
      std::size_t head;
      std::memcpy(&head, key.digest.data(), sizeof head);
      return head ^ (static_cast<std::size_t>(key.group) * 0x9e3779b97f4a7c15ull);
    }
  };
  // One content. Many blocks may hold it (the last block of a repeated prompt is computed anew each time), so they
  // are a set: taking one out must not walk over all.
  struct Entry {
    ChainNodePtr node;
    std::set<BlockId> blocks;
    BlockId lowest;  // of the blocks

    void update() { lowest = *blocks.begin(); }
  };
  using Entries = std::unordered_multimap<Key, Entry, KeyHash>;  // several per key only where digests collide

  Entries entries_;
};

}  // namespace headrace::core
