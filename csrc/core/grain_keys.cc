#include "core/grain_keys.h"

#include <bit>

namespace headrace::core {
namespace {

constexpr char kDomain[] = "headrace.kv/1";
enum Tag : std::uint8_t { kAdapter = 1, kMedia = 2, kEmbeds = 3 };

void put_u32(std::string& out, std::uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(value >> shift));
}

void put_extra(std::string& out, Tag tag, const std::string& payload) {
  out.push_back(static_cast<char>(tag));
  put_u32(out, static_cast<std::uint32_t>(payload.size()));
  out += payload;
}

std::string extras_of(const ExtraKeys& keys, std::int64_t start) {
  std::string out;
  if (!keys.adapter.empty()) put_extra(out, kAdapter, keys.adapter);
  for (const MediaItem& item : keys.media) {
    if (item.start >= start + kGrain || std::int64_t{item.start} + item.length <= start) continue;
    std::string payload;
    put_u32(payload, static_cast<std::uint32_t>(item.start - start));
    put_extra(out, kMedia, payload + item.id);
  }
  if (!keys.embeds_digest.empty()) put_extra(out, kEmbeds, keys.embeds_digest);
  return out;
}

}  // namespace

Digest grain_root(const Digest& name_space, const std::string& salt) {
  std::string framed;
  put_u32(framed, static_cast<std::uint32_t>(salt.size()));
  framed += salt;
  Sha256 hash;
  hash.update(kDomain, sizeof kDomain - 1);
  hash.update(name_space.data(), name_space.size());
  hash.update(framed.data(), framed.size());
  return hash.finish();
}

std::vector<Digest> grain_chain(const Digest& root, std::span<const Token> tokens, const ExtraKeys& keys) {
  static_assert(std::endian::native == std::endian::little, "tokens are hashed as they lie in memory");
  std::vector<Digest> chain;
  std::string count;
  put_u32(count, kGrain);
  for (std::size_t start = 0; start + kGrain <= tokens.size(); start += kGrain) {
    const std::string extras = extras_of(keys, static_cast<std::int64_t>(start));
    Sha256 hash;
    hash.update((chain.empty() ? root : chain.back()).data(), root.size());
    hash.update(count.data(), count.size());
    hash.update(tokens.data() + start, kGrain * sizeof(Token));
    hash.update(extras.data(), extras.size());
    chain.push_back(hash.finish());
  }
  return chain;
}

}  // namespace headrace::core
