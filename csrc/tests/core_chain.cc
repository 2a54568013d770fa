// Content chains: published digests, extras, equality, release.
#include <numeric>

#include "core/chain.h"
#include "tests/check.h"

using namespace headrace::core;

namespace {

std::vector<Token> range(Token first, std::int32_t count) {
  std::vector<Token> out(count);
  std::iota(out.begin(), out.end(), first);
  return out;
}

std::string hex(const Digest& digest) {
  std::string out;
  for (const std::uint8_t byte : digest) {
    out.push_back("0123456789abcdef"[byte >> 4]);
    out.push_back("0123456789abcdef"[byte & 15]);
  }
  return out;
}

ChainNodePtr chain_of(std::int32_t length, Token seed, HashKind kind = HashKind::kSha256Cbor) {
  ChainNodePtr node;
  for (std::int32_t i = 0; i < length; ++i) node = make_node(node, range(seed + i, 4), {}, kind);
  return node;
}

}  // namespace

TEST(chain_golden_vectors) {
  CHECK_EQ(hex(empty_parent()), std::string("9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0"));
  const ChainNodePtr first = make_node(nullptr, range(0, 16), {}, HashKind::kSha256Cbor);
  CHECK_EQ(hex(first->digest), std::string("dc918a88b139e5afe60b88eda27508d4aee16c10fdc354791efea06206ac0749"));
  const ChainNodePtr second = make_node(first, range(16, 16), {}, HashKind::kSha256Cbor);
  CHECK_EQ(hex(second->digest), std::string("c300ec275d7bf08af8fc63e76cdc0086911bbc7091e03c5cf892553bef84ef0c"));
}

TEST(chain_extras_are_canonical_cbor) {
  ExtraKeys keys;
  CHECK_EQ(encode_extras(keys, 0, 16), std::string());
  keys.salt = std::string("s");
  CHECK_EQ(encode_extras(keys, 0, 16), std::string("\x81\x82\x64salt\x61s"));
  CHECK_EQ(encode_extras(keys, 16, 16), std::string());  // the salt is in the first block only
  keys.salt.clear(), keys.adapter = std::string("X");
  CHECK_EQ(encode_extras(keys, 16, 16), std::string("\x81\x82\x67"
                                                    "adapter\x61X"));
}

TEST(chain_media_touch_only_their_blocks_with_relative_offsets) {
  ExtraKeys keys;
  keys.media.push_back({"img", 20, 20});
  CHECK_EQ(encode_extras(keys, 0, 16), std::string());
  CHECK_EQ(encode_extras(keys, 16, 16), std::string("\x81\x83\x62mm\x63img\x04"));
  CHECK_EQ(encode_extras(keys, 32, 16), std::string("\x81\x83\x62mm\x63img\x2b"));  // 20 - 32 = -12
  CHECK_EQ(encode_extras(keys, 40, 16), std::string());
  keys.media[0] = {"img", 20, std::numeric_limits<std::int32_t>::max()};  // its end does not fit 32 bits
  CHECK(!encode_extras(keys, 1 << 20, 16).empty());
}

TEST(chain_adapter_and_salt_of_one_name_differ) {
  ExtraKeys adapter, salt, embeds;
  adapter.adapter = salt.salt = embeds.embeds_digest = "X";
  CHECK(encode_extras(adapter, 0, 4) != encode_extras(salt, 0, 4));
  CHECK(encode_extras(embeds, 0, 4) != encode_extras(salt, 0, 4));
}

TEST(chain_content_decides_where_digests_collide) {
  std::vector<ChainNodePtr> nodes;
  for (Token t = 0; t < 20; ++t) nodes.push_back(chain_of(2, t, HashKind::kWeakForTests));
  bool collided = false;
  for (const auto& a : nodes)
    for (const auto& b : nodes) {
      collided |= a != b && a->digest == b->digest;
      CHECK_EQ(same_content(a, b), a == b);
    }
  CHECK(collided);
}

TEST(chain_equality_looks_at_every_ancestor) {
  const ChainNodePtr a = make_node(chain_of(3, 1), range(9, 4), {}, HashKind::kSha256Cbor);
  const ChainNodePtr b = make_node(chain_of(3, 2), range(9, 4), {}, HashKind::kSha256Cbor);
  const ChainNodePtr shorter = make_node(chain_of(2, 1), range(9, 4), {}, HashKind::kSha256Cbor);
  CHECK(!same_content(a, b));
  CHECK(!same_content(a, shorter) && !same_content(shorter, a));
  CHECK(!same_content(a, make_node(a->parent, range(9, 4), "\x80", HashKind::kSha256Cbor)));
}

TEST(chain_equal_chains_share_ancestors_once_compared) {
  const ChainNodePtr held = chain_of(50, 1), other = chain_of(50, 1);
  CHECK(held->parent != other->parent);
  CHECK(same_content(held, other));
  CHECK(held->parent == other->parent);
  CHECK(same_content(held, held));
}

TEST(chain_of_a_million_blocks_is_released_without_recursion) {
  auto node = std::make_shared<ChainNode>();
  for (int i = 0; i < 1000000; ++i) {
    auto next = std::make_shared<ChainNode>();
    next->parent = std::move(node);
    node = std::move(next);
  }
  const std::weak_ptr<ChainNode> alive = node;
  node.reset();
  CHECK(alive.expired());
}
