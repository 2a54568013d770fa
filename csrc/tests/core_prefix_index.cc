// The prefix index: content and group decide; several blocks may hold one content.
#include "core/prefix_index.h"
#include "tests/check.h"

using namespace headrace::core;

namespace {

ChainNodePtr node_of(Token token, ChainNodePtr parent = nullptr, HashKind kind = HashKind::kSha256Cbor) {
  const std::vector<Token> tokens(4, token);
  return make_node(std::move(parent), tokens, {}, kind);
}

}  // namespace

TEST(prefix_index_finds_by_content_and_group) {
  PrefixIndex index;
  const ChainNodePtr node = node_of(1);
  CHECK(index.insert(node, 0, 5) == node);
  ChainNodePtr canonical;
  CHECK_EQ(index.find(node_of(1), 0, &canonical), 5);
  CHECK(canonical == node);
  CHECK_EQ(index.find(node_of(1), 1), kNullBlock);
  CHECK_EQ(index.find(node_of(2), 0), kNullBlock);
  CHECK_EQ(index.find(node_of(1, node_of(9)), 0), kNullBlock);
}

TEST(prefix_index_keeps_every_block_of_a_content) {
  PrefixIndex index;
  const ChainNodePtr first = node_of(1);
  index.insert(first, 0, 7);
  CHECK(index.insert(node_of(1), 0, 3) == first);
  CHECK_EQ(index.size(), 1u);
  CHECK_EQ(index.find(first, 0), 3);
  index.erase(first, 0, 3);
  CHECK_EQ(index.find(first, 0), 7);
  index.erase(first, 0, 4);  // was never there
  index.erase(first, 0, 7);
  CHECK_EQ(index.find(first, 0), kNullBlock);
  CHECK_EQ(index.size(), 0u);
}

TEST(prefix_index_tells_colliding_contents_apart) {
  PrefixIndex index;
  for (Token t = 0; t < 30; ++t) index.insert(node_of(t, nullptr, HashKind::kWeakForTests), 0, t + 1);
  for (Token t = 0; t < 30; ++t) CHECK_EQ(index.find(node_of(t, nullptr, HashKind::kWeakForTests), 0), t + 1);
  for (Token t = 0; t < 30; t += 2) index.erase(node_of(t, nullptr, HashKind::kWeakForTests), 0, t + 1);
  for (Token t = 0; t < 30; ++t)
    CHECK_EQ(index.find(node_of(t, nullptr, HashKind::kWeakForTests), 0), t % 2 ? t + 1 : kNullBlock);
}

TEST(prefix_index_lookups_of_a_fresh_chain_come_to_share_the_held_one) {
  PrefixIndex index;
  ChainNodePtr held, fresh;
  std::vector<ChainNodePtr> chain;
  for (Token t = 0; t < 100; ++t) {
    held = node_of(t, held), fresh = node_of(t, fresh);
    index.insert(held, 0, t + 1);
    chain.push_back(fresh);
  }
  for (Token t = 0; t < 100; ++t) CHECK_EQ(index.find(chain[t], 0), t + 1);
  CHECK(chain.back()->parent == held->parent);  // so that the next comparison stops one block up
}
