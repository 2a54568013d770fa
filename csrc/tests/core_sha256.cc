// SHA-256 against the vectors of FIPS 180-4 and against itself in pieces.
#include <string>

#include "core/sha256.h"
#include "tests/check.h"

using headrace::core::Digest;
using headrace::core::Sha256;

namespace {

std::string hex(const Digest& digest) {
  std::string out;
  for (const std::uint8_t byte : digest) {
    out.push_back("0123456789abcdef"[byte >> 4]);
    out.push_back("0123456789abcdef"[byte & 15]);
  }
  return out;
}

std::string sha256(const std::string& text) {
  Sha256 hash;
  hash.update(text.data(), text.size());
  return hex(hash.finish());
}

}  // namespace

TEST(sha256_published_vectors) {
  CHECK_EQ(sha256(""), std::string("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"));
  CHECK_EQ(sha256("abc"), std::string("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
  CHECK_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
           std::string("248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"));
  CHECK_EQ(sha256(std::string(1000000, 'a')),
           std::string("cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"));
}

TEST(sha256_pieces_make_no_difference) {
  for (std::size_t size = 0; size < 200; ++size) {  // around every padding boundary
    std::string text(size, ' ');
    for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>('a' + i % 26);
    Sha256 pieces;
    for (std::size_t i = 0; i < size; i += 7) pieces.update(text.data() + i, std::min<std::size_t>(7, size - i));
    CHECK_EQ(hex(pieces.finish()), sha256(text));
  }
}

TEST(sha256_instructions_compute_what_the_scalar_code_computes) {
  std::uint8_t chunks[5 * 64];
  std::uint32_t random = 1;
  for (int round = 0; round < 200; ++round) {
    std::uint32_t scalar[8], fast[8];
    for (std::uint8_t& byte : chunks) byte = static_cast<std::uint8_t>((random = random * 1664525 + 1013904223) >> 24);
    for (int i = 0; i < 8; ++i) scalar[i] = fast[i] = random = random * 1664525 + 1013904223;
    const std::size_t count = static_cast<std::size_t>(round % 6);
    if (!headrace::core::sha256_compress_by_instruction(fast, chunks, count)) return;  // this processor has none
    headrace::core::sha256_compress_scalar(scalar, chunks, count);
    for (int i = 0; i < 8; ++i) CHECK_EQ(fast[i], scalar[i]);
  }
}
