// The block pool: worked free-queue traces, refusals, and random operations against a plain list of blocks.
#include <algorithm>
#include <map>
#include <random>

#include "core/block_pool.h"
#include "tests/check.h"

using namespace headrace::core;

namespace {

ChainNodePtr node_of(Token token) {
  const std::vector<Token> tokens(2, token);
  return make_node(nullptr, tokens, {}, HashKind::kSha256Cbor);
}

using Ids = std::vector<BlockId>;

void free_one(BlockPool& pool, BlockId block) { pool.free(Ids{block}); }

}  // namespace

TEST(pool_starts_with_every_block_but_the_null_one_free) {
  const BlockPool pool(5, true);
  CHECK_EQ(pool.num_blocks(), 4);
  CHECK_EQ(pool.free_queue(), (Ids{1, 2, 3, 4}));
  CHECK_THROWS(InvalidField, BlockPool(1, true));
  CHECK_THROWS(InvalidField, BlockPool(-7, true));
}

TEST(pool_free_block_is_a_hit_until_it_is_handed_out) {
  BlockPool pool(4, true);
  const Ids ids = pool.allocate(2);
  pool.name(ids[0], node_of(1), 0);
  pool.free(ids);
  CHECK_EQ(pool.free_queue(), (Ids{2, 3, 1}));  // unnamed to the head, named to the tail
  CHECK_EQ(pool.find(node_of(1), 0), 1);
  pool.touch(Ids{1});
  CHECK_EQ(pool.free_queue(), (Ids{2, 3}));
  free_one(pool, 1);
  pool.allocate(3);
  CHECK_EQ(pool.find(node_of(1), 0), kNullBlock);
}

TEST(pool_deepest_block_of_a_chain_is_reused_first) {
  BlockPool pool(4, true);
  Ids ids = pool.allocate(3);
  for (const BlockId block : ids) pool.name(block, node_of(block), 0);
  std::reverse(ids.begin(), ids.end());
  pool.free(ids);
  CHECK_EQ(pool.free_queue(), (Ids{3, 2, 1}));
}

TEST(pool_evict_first_and_forget_move_a_free_block_to_the_head) {
  BlockPool pool(5, true);
  const Ids ids = pool.allocate(4);
  for (const BlockId block : ids) pool.name(block, node_of(block), 0);
  pool.evict_first(2);
  pool.free(ids);
  CHECK_EQ(pool.free_queue(), (Ids{2, 1, 3, 4}));
  CHECK_EQ(pool.find(node_of(2), 0), 2);  // still a hit
  pool.evict_first(4);
  pool.forget(3);
  CHECK_EQ(pool.free_queue(), (Ids{3, 4, 2, 1}));
  CHECK_EQ(pool.find(node_of(3), 0), kNullBlock);
  pool.allocate(4);
  pool.free(ids);
  CHECK_EQ(pool.free_queue(), (Ids{4, 3, 2, 1}));  // marks and names went with the hand-out
}

TEST(pool_refuses_unsound_calls_and_changes_nothing) {
  BlockPool pool(4, true);
  const Ids ids = pool.allocate(2);
  CHECK_THROWS(std::logic_error, pool.free(Ids{1, 1}));
  CHECK_THROWS(std::logic_error, pool.free(Ids{1, 3}));
  CHECK_THROWS(std::logic_error, pool.free(Ids{1, 99}));
  CHECK_THROWS(std::logic_error, pool.free(Ids{-1}));
  CHECK_THROWS(std::out_of_range, pool.touch(Ids{1, 99}));
  CHECK_THROWS(std::out_of_range, pool.touch(Ids{-1}));
  CHECK_THROWS(std::logic_error, pool.allocate(2));
  CHECK_THROWS(std::logic_error, pool.allocate(-1));
  CHECK_THROWS(std::logic_error, pool.name(3, node_of(1), 0));           // free
  CHECK_THROWS(std::logic_error, pool.name(kNullBlock, node_of(1), 0));  // never in use
  CHECK_EQ(pool.ref_count(1), 1);
  CHECK_EQ(pool.num_used(), 2);
  pool.free(Ids{kNullBlock, 1, kNullBlock, 2});  // null blocks are passed over
  CHECK_EQ(pool.num_used(), 0);
}

TEST(pool_without_caching_never_names) {
  BlockPool pool(3, false);
  const Ids ids = pool.allocate(1);
  pool.name(ids[0], node_of(1), 0);
  CHECK_EQ(pool.find(node_of(1), 0), kNullBlock);
}

namespace {

// The same pool, written with a plain list.
struct Model {
  std::vector<BlockId> queue;
  std::map<BlockId, int> refs;
  std::map<BlockId, Token> names;
  std::map<BlockId, bool> first;

  explicit Model(BlockId count) {
    for (BlockId b = 1; b <= count; ++b) queue.push_back(b), refs[b] = 0;
  }
  void unqueue(BlockId b) { queue.erase(std::find(queue.begin(), queue.end(), b)); }
  Ids allocate(int count) {
    Ids out(queue.begin(), queue.begin() + count);
    queue.erase(queue.begin(), queue.begin() + count);
    for (const BlockId b : out) refs[b] = 1, names.erase(b), first.erase(b);
    return out;
  }
  void touch(BlockId b) {
    if (refs[b]++ == 0) unqueue(b);
  }
  void free(BlockId b) {
    if (--refs[b] > 0) return;
    queue.insert(names.count(b) && !first.count(b) ? queue.end() : queue.begin(), b);
  }
  void to_head(BlockId b) {
    if (refs[b] == 0) unqueue(b), queue.insert(queue.begin(), b);
  }
  BlockId find(Token token) const {
    for (const auto& [block, name] : names)  // the lowest number first
      if (name == token) return block;
    return kNullBlock;
  }
};

}  // namespace

TEST(pool_random_operations_equal_a_plain_list) {
  std::mt19937 random(2);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  for (int round = 0; round < 40; ++round) {
    const BlockId count = 2 + below(12);
    BlockPool pool(count + 1, true);
    Model model(count);
    for (int i = 0; i < 300; ++i) {
      const BlockId block = 1 + below(count);
      const Token token = below(6);
      switch (below(7)) {
        case 0: {
          const int size = below(static_cast<int>(model.queue.size()) + 1);
          CHECK_EQ(pool.allocate(size), model.allocate(size));
          break;
        }
        case 1:
          pool.touch(Ids{block}), model.touch(block);
          break;
        case 2:
        case 3:
          if (model.refs[block] == 0) {
            CHECK_THROWS(std::logic_error, free_one(pool, block));
          } else {
            free_one(pool, block), model.free(block);
          }
          break;
        case 4:
          if (model.refs[block] == 0) break;
          pool.name(block, node_of(token), 0);
          model.names.emplace(block, token);
          break;
        case 5:
          pool.forget(block);
          if (model.names.erase(block)) model.to_head(block);
          break;
        case 6:
          pool.evict_first(block), model.first[block] = true, model.to_head(block);
          break;
      }
      CHECK_EQ(pool.free_queue(), model.queue);
      CHECK_EQ(pool.num_free() + pool.num_used(), count);
      for (Token t = 0; t < 6; ++t) CHECK_EQ(pool.find(node_of(t), 0), model.find(t));
      for (BlockId b = 1; b <= count; ++b) CHECK_EQ(pool.ref_count(b), model.refs[b]);
    }
    pool.forget_all();
    for (Token t = 0; t < 6; ++t) CHECK_EQ(pool.find(node_of(t), 0), kNullBlock);
    CHECK_EQ(pool.free_queue(), model.queue);
  }
}
