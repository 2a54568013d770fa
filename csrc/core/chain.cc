#include "core/chain.h"

#include <algorithm>

namespace headrace::core {
namespace {

// The three CBOR heads we need (RFC 8949 §3): major type in the top three bits, shortest length form.
void put_head(std::string& out, std::uint8_t major, std::uint64_t value) {
  const auto top = static_cast<std::uint8_t>(major << 5);
  const int extra = value < 24 ? 0 : value < 0x100 ? 1 : value < 0x10000 ? 2 : value < 0x100000000 ? 4 : 8;
  if (extra == 0) {
    out.push_back(static_cast<char>(top | value));
    return;
  }
  const int code = extra == 1 ? 24 : extra == 2 ? 25 : extra == 4 ? 26 : 27;
  out.push_back(static_cast<char>(top | code));
  for (int i = extra - 1; i >= 0; --i) out.push_back(static_cast<char>(value >> (8 * i)));
}

void put_int(std::string& out, std::int64_t value) {
  if (value >= 0) return put_head(out, 0, static_cast<std::uint64_t>(value));
  put_head(out, 1, static_cast<std::uint64_t>(-1 - value));
}

void put_text(std::string& out, const std::string& text) {
  put_head(out, 3, text.size());
  out += text;
}

void put_array(std::string& out, std::size_t size) { put_head(out, 4, size); }

Digest weaken(Digest digest) {
  const std::uint8_t two_bits = digest[0] & 3;
  digest.fill(two_bits);
  return digest;
}

}  // namespace

ChainNode::~ChainNode() {
  ChainNodePtr next = std::move(parent);
  while (next && next.use_count() == 1) {
    ChainNodePtr up = std::move(next->parent);
    next = std::move(up);
  }
}

const Digest& empty_parent() {
  static const Digest digest = {0x9b, 0xd9, 0x6a, 0x48, 0x5a, 0xd8, 0x4e, 0xfd, 0xaf, 0xb7, 0x2e,
                                0xe4, 0x8a, 0x1d, 0x7a, 0x69, 0xbc, 0xea, 0xd0, 0xf8, 0xf0, 0x43,
                                0x31, 0x73, 0x94, 0x1b, 0x27, 0x6b, 0x95, 0x81, 0xee, 0xf0};
  return digest;
}

std::string encode_extras(const ExtraKeys& keys, std::int32_t start, std::int32_t size) {
  std::string items;
  std::size_t count = 0;
  const auto pair = [&](const char* tag, const std::string& value) {
    put_array(items, 2), put_text(items, tag), put_text(items, value), ++count;
  };
  if (!keys.adapter.empty()) pair("adapter", keys.adapter);
  for (const MediaItem& item : keys.media) {
    const std::int64_t item_end = std::int64_t{item.start} + item.length;
    if (item.start >= std::int64_t{start} + size || item_end <= start) continue;
    put_array(items, 3), put_text(items, "mm"), put_text(items, item.id),
        put_int(items, std::int64_t{item.start} - start);
    ++count;
  }
  if (start == 0 && !keys.salt.empty()) pair("salt", keys.salt);
  if (!keys.embeds_digest.empty()) pair("embeds", keys.embeds_digest);
  if (count == 0) return {};
  std::string out;
  put_array(out, count);
  return out + items;
}

Digest hash_block(const Digest& parent, std::span<const Token> tokens, const std::string& extras, HashKind kind) {
  std::string bytes;
  bytes.reserve(48 + 5 * tokens.size() + extras.size());
  put_array(bytes, 3);
  put_head(bytes, 2, parent.size());
  bytes.append(reinterpret_cast<const char*>(parent.data()), parent.size());
  put_array(bytes, tokens.size());
  for (const Token token : tokens) put_int(bytes, token);
  if (extras.empty()) {
    bytes.push_back(static_cast<char>(0xf6));  // null
  } else {
    bytes += extras;
  }
  Sha256 hash;
  hash.update(bytes.data(), bytes.size());
  const Digest digest = hash.finish();
  return kind == HashKind::kWeakForTests ? weaken(digest) : digest;
}

ChainNodePtr make_node(ChainNodePtr parent, std::span<const Token> tokens, std::string extras, HashKind kind) {
  auto node = std::make_shared<ChainNode>();
  node->digest = hash_block(parent ? parent->digest : empty_parent(), tokens, extras, kind);
  node->tokens.assign(tokens.begin(), tokens.end());
  node->extras = std::move(extras);
  node->parent = std::move(parent);
  return node;
}

bool same_content(const ChainNodePtr& held, const ChainNodePtr& other) {
  const ChainNode* left = held.get();
  const ChainNode* right = other.get();
  while (left != right) {
    if (!left || !right || left->tokens != right->tokens || left->extras != right->extras) return false;
    left = left->parent.get(), right = right->parent.get();
  }
  if (held != other) other->parent = held->parent;
  return true;
}

}  // namespace headrace::core
