#include "core/prefix_index.h"

namespace headrace::core {

BlockId PrefixIndex::find(const ChainNodePtr& node, std::int32_t group, ChainNodePtr* canonical) const {
  const auto [first, last] = entries_.equal_range({node->digest, group});
  for (auto it = first; it != last; ++it) {
    if (!same_content(it->second.node, node)) continue;
    if (canonical) *canonical = it->second.node;
    return it->second.block;
  }
  return kNullBlock;
}

ChainNodePtr PrefixIndex::insert(const ChainNodePtr& node, std::int32_t group, BlockId block) {
  ChainNodePtr held = node;
  find(node, group, &held);
  entries_.emplace(Key{held->digest, group}, Entry{held, block});
  return held;
}

void PrefixIndex::erase(const ChainNodePtr& node, std::int32_t group, BlockId block) {
  const auto [first, last] = entries_.equal_range({node->digest, group});
  for (auto it = first; it != last; ++it) {
    if (it->second.block != block) continue;
    entries_.erase(it);
    return;
  }
}

}  // namespace headrace::core
