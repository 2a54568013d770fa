// The chain of block contents that the prefix cache is keyed by.
// A node names one full block: its tokens, what else shapes its KV (extras), and everything before it (parent).
// digest = SHA-256 of canonical CBOR [parent digest, [tokens], null | extras] ("sha256_cbor"). The node keeps its
// content, and a lookup compares content as well as digest, so a colliding digest can never give foreign KV.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/sha256.h"
#include "core/types.h"

namespace headrace::core {

struct ChainNode;
using ChainNodePtr = std::shared_ptr<const ChainNode>;

struct ChainNode {
  ~ChainNode();  // iterative: a recursive release of a long chain would exhaust the stack

  Digest digest{};
  std::vector<Token> tokens;
  std::string extras;           // canonical CBOR, empty when there are none
  mutable ChainNodePtr parent;  // may be exchanged for an equal node, so that equal chains share their ancestors

  // Where an index holds this very node in its first group, set and cleared by the index: a chain that was looked up
  // before finds its blocks without any hashing.
  struct Held {
    const void* index = nullptr;
    const BlockId* lowest = nullptr;
  };
  mutable Held held;
};

// A multimodal item: its content id and the positions [start, start + length) it fills.
struct MediaItem {
  std::string id;
  std::int32_t start = 0;
  std::int32_t length = 0;
};

// Everything besides tokens that changes the KV of a sequence.
struct ExtraKeys {
  std::string adapter;
  std::vector<MediaItem> media;
  std::string salt;
  std::string embeds_digest;
};

enum class HashKind : std::uint8_t {
  kSha256Cbor = 0,
  kWeakForTests = 1,  // four values in all: shows that content, not the digest, decides a hit
};

// The parent of every first block.
const Digest& empty_parent();

// Canonical CBOR of the extras of the block [start, start + size), empty when it has none. Order: adapter, media
// (id and offset of the item relative to the block), salt (first block only), embeds.
std::string encode_extras(const ExtraKeys& keys, std::int32_t start, std::int32_t size);

Digest hash_block(const Digest& parent, std::span<const Token> tokens, const std::string& extras, HashKind kind);

ChainNodePtr make_node(ChainNodePtr parent, std::span<const Token> tokens, std::string extras, HashKind kind);

// Content equality, up the whole chain; stops early where nodes are shared. Equal chains share their ancestors
// afterwards (`other` takes over those of `held`), so that walking up a chain block by block costs one comparison a
// block and not one per pair of blocks.
bool same_content(const ChainNodePtr& held, const ChainNodePtr& other);

}  // namespace headrace::core
