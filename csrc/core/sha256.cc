#include "core/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/sha256_rounds.h"

namespace headrace::core {
namespace {

std::uint32_t load_big_endian(const std::uint8_t* p) {
  return std::uint32_t{p[0]} << 24 | std::uint32_t{p[1]} << 16 | std::uint32_t{p[2]} << 8 | p[3];
}

void expand(const std::uint8_t* chunk, std::uint32_t* w) {
  for (int i = 0; i < 16; ++i) w[i] = load_big_endian(chunk + 4 * i);
  for (int i = 16; i < 64; ++i) {
    const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
}

void compress_one(std::uint32_t* state, const std::uint8_t* chunk) {
  std::uint32_t w[64];
  expand(chunk, w);
  std::uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
  std::uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
  for (int i = 0; i < 64; ++i) {
    const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kSha256Round[i] + w[i];
    const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::uint32_t add[8] = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) state[i] += add[i];
}

void compress(std::uint32_t* state, const std::uint8_t* chunks, std::size_t count) {
  if (!sha256_compress_by_instruction(state, chunks, count)) sha256_compress_scalar(state, chunks, count);
}

}  // namespace

void sha256_compress_scalar(std::uint32_t* state, const std::uint8_t* chunks, std::size_t count) {
  for (; count > 0; --count, chunks += 64) compress_one(state, chunks);
}

void Sha256::update(const void* data, std::size_t size) {
  const auto* bytes = static_cast<const std::uint8_t*>(data);
  const std::size_t used = total_ % 64;
  total_ += size;
  if (used != 0) {
    const std::size_t take = std::min(size, 64 - used);
    std::memcpy(buffer_.data() + used, bytes, take);
    bytes += take, size -= take;
    if (used + take < 64) return;
    compress(state_.data(), buffer_.data(), 1);
  }
  if (size >= 64) compress(state_.data(), bytes, size / 64);
  if (size % 64 != 0) std::memcpy(buffer_.data(), bytes + size / 64 * 64, size % 64);
}

Digest Sha256::finish() {
  const std::size_t used = total_ % 64;
  std::uint8_t tail[128] = {};  // the rest, a one bit, zeros, and the length in bits at the end of a chunk
  std::memcpy(tail, buffer_.data(), used);
  tail[used] = 0x80;
  const std::size_t size = used < 56 ? 64 : 128;
  for (int i = 0; i < 8; ++i) tail[size - 8 + i] = static_cast<std::uint8_t>(total_ * 8 >> (56 - 8 * i));
  compress(state_.data(), tail, size / 64);
  Digest digest;
  for (int i = 0; i < 8; ++i)
    for (int j = 0; j < 4; ++j) digest[4 * i + j] = static_cast<std::uint8_t>(state_[i] >> (24 - 8 * j));
  return digest;
}

}  // namespace headrace::core
