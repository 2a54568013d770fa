// Keys of stored KV against golden vectors (made apart, with hashlib), and CRC-32C against RFC 3720.
#include <numeric>
#include <string>

#include "core/crc32c.h"
#include "core/grain_keys.h"
#include "tests/check.h"

using namespace headrace::core;

namespace {

std::string hex(const Digest& digest) {
  std::string out;
  for (const std::uint8_t byte : digest) {
    out.push_back("0123456789abcdef"[byte >> 4]);
    out.push_back("0123456789abcdef"[byte & 15]);
  }
  return out;
}

Digest counting() {
  Digest digest;
  std::iota(digest.begin(), digest.end(), std::uint8_t{0});
  return digest;
}

std::vector<Token> tokens(std::int32_t count) {
  std::vector<Token> out(count);
  std::iota(out.begin(), out.end(), 0);
  return out;
}

}  // namespace

TEST(grain_keys_golden_vectors) {
  const Digest root = grain_root(counting(), "");
  CHECK_EQ(hex(root), std::string("47791599a3ee606e853b0b2cb4fc4778532241663efa25fddf10542848c71bd7"));
  CHECK_EQ(hex(grain_root(counting(), "tenant")),
           std::string("52a9ffd49ccacf2caa05f5989d74a0e406b5d7bcbc4397f0d42bcdf31c915f39"));
  const auto chain = grain_chain(root, tokens(383), {});
  CHECK_EQ(chain.size(), 2u);
  CHECK_EQ(hex(chain[0]), std::string("a412cb2f5488be1de2c01ad4d30040452dab4c8b121902f1bd62275f6e3bb7ae"));
  CHECK_EQ(hex(chain[1]), std::string("8d394d34ecfdeceb4e9ac93f49f6d1cb2844f70eae58d375b1038d8f34f800a0"));
  const ExtraKeys extras{"lora", {{"image", 130, 4}}, "ignored here", "embeds"};
  CHECK_EQ(hex(grain_chain(root, tokens(256), extras)[1]),
           std::string("1d2848b36493ac3a596446d186e49cf1715dc46eebfd74e5b06bd3d272daa1a9"));
}

TEST(grain_keys_only_full_grains_have_one) {
  const Digest root = grain_root(counting(), "");
  for (const auto& [length, count] : {std::pair{0, 0u}, {127, 0u}, {128, 1u}, {129, 1u}, {256, 2u}})
    CHECK_EQ(grain_chain(root, tokens(length), {}).size(), count);
}

TEST(crc32c_known_values_and_both_ways_agree) {
  const std::string zeros(32, '\0'), ones(32, '\xff'), digits = "123456789";
  CHECK_EQ(crc32c(zeros.data(), 32), 0x8a9136aau);
  CHECK_EQ(crc32c(ones.data(), 32), 0x62a8ab43u);
  CHECK_EQ(crc32c(digits.data(), 9), 0xe3069283u);
  std::string text(1000, 'x');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * i + i / 3);
  for (std::size_t size = 0; size < 64; ++size)
    CHECK_EQ(crc32c(text.data() + size, size), crc32c_by_table(text.data() + size, size));
  CHECK_EQ(crc32c(text.data() + 500, 500, crc32c(text.data(), 500)), crc32c_by_table(text.data(), 1000));
  std::vector<std::uint8_t> longer(20000);
  for (std::size_t i = 0; i < longer.size(); ++i) longer[i] = static_cast<std::uint8_t>(i * i >> 3 ^ i);
  for (const std::size_t size : {3071, 3072, 3073, 6143, 6144, 9999, 19993})  // around whole lanes
    for (const std::uint32_t before : {0u, 0x12345678u})
      CHECK_EQ(crc32c(longer.data() + 3, size, before), crc32c_by_table(longer.data() + 3, size, before));
}
