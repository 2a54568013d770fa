#include "core/prefix_index.h"

namespace headrace::core {

BlockId PrefixIndex::find(const ChainNodePtr& node, std::int32_t group, ChainNodePtr* canonical) const {
  const auto [first, last] = entries_.equal_range({node->digest, group});
  for (auto it = first; it != last; ++it) {
    if (!same_content(it->second.node, node)) continue;
    if (canonical && *canonical != it->second.node) *canonical = it->second.node;  // counting owners is not free
    return *it->second.blocks.begin();
  }
  return kNullBlock;
}

ChainNodePtr PrefixIndex::insert(const ChainNodePtr& node, std::int32_t group, BlockId block) {
  const Key key{node->digest, group};
  const auto [first, last] = entries_.equal_range(key);
  for (auto it = first; it != last; ++it) {
    if (!same_content(it->second.node, node)) continue;
    it->second.blocks.insert(block);
    return it->second.node;
  }
  entries_.emplace(key, Entry{node, {block}});
  return node;
}

void PrefixIndex::erase(const ChainNodePtr& node, std::int32_t group, BlockId block) {
  const auto [first, last] = entries_.equal_range({node->digest, group});
  for (auto it = first; it != last; ++it) {
    if (it->second.blocks.erase(block) == 0) continue;
    if (it->second.blocks.empty()) entries_.erase(it);
    return;
  }
}

}  // namespace headrace::core
