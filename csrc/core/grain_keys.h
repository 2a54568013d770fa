// Names of stored KV: a SHA-256 chain over grains of 128 tokens, apart from the chain of the device's prefix cache.
//   root   = SHA256("headrace.kv/1" | namespace digest | u32 length | salt)
//   key[i] = SHA256(key[i-1] | u32 count | u32 tokens... | extras)     extra = u8 tag | u32 length | payload
// All integers are little-endian. Tags: 1 adapter, 2 media (i32 offset from the grain's start, then the id), 3 embeds.
// Python's kv/keys.py makes the same bytes; golden vectors hold both. No interpreter's hash may enter here.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/chain.h"

namespace headrace::core {

inline constexpr std::int32_t kGrain = 128;

// Where a tenant's chains begin: a chain without the salt never meets one with it.
Digest grain_root(const Digest& name_space, const std::string& salt);
// One key per full grain of `tokens`. The salt of `keys` is the root's business and is not looked at.
std::vector<Digest> grain_chain(const Digest& root, std::span<const Token> tokens, const ExtraKeys& keys);

}  // namespace headrace::core
