#include "core/prefix_index.h"

namespace headrace::core {

BlockId PrefixIndex::find(const ChainNodePtr& node, std::int32_t group, ChainNodePtr* canonical) const {
  if (group == 0 && node->held.index == this) {
    if (canonical && *canonical != node) *canonical = node;
    return *node->held.lowest;
  }
  const auto [first, last] = entries_.equal_range({node->digest, group});
  for (auto it = first; it != last; ++it) {
    if (!same_content(it->second.node, node)) continue;
    if (canonical && *canonical != it->second.node) *canonical = it->second.node;  // counting owners is not free
    return it->second.lowest;
  }
  return kNullBlock;
}

ChainNodePtr PrefixIndex::insert(const ChainNodePtr& node, std::int32_t group, BlockId block) {
  const Key key{node->digest, group};
  const auto [first, last] = entries_.equal_range(key);
  for (auto it = first; it != last; ++it) {
    if (!same_content(it->second.node, node)) continue;
    it->second.blocks.insert(block);
    it->second.update();
    return it->second.node;
  }
  const auto made = entries_.emplace(key, Entry{node, {block}, block});
  if (group == 0) node->held = {this, &made->second.lowest};
  return node;
}

void PrefixIndex::erase(const ChainNodePtr& node, std::int32_t group, BlockId block) {
  const auto [first, last] = entries_.equal_range({node->digest, group});
  for (auto it = first; it != last; ++it) {
    if (it->second.blocks.erase(block) == 0) continue;
    if (!it->second.blocks.empty()) return it->second.update();
    if (group == 0) it->second.node->held = {};
    entries_.erase(it);
    return;
  }
}

void PrefixIndex::clear() {
  for (auto& [key, entry] : entries_) {
    if (key.group == 0) entry.node->held = {};
  }
  entries_.clear();
}

}  // namespace headrace::core
