// SHA-256 (FIPS 180-4), streaming.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace headrace::core {

using Digest = std::array<std::uint8_t, 32>;

// Takes `count` chunks of 64 bytes into the state. Scalar: what the standard says, and what others are tested against.
void sha256_compress_scalar(std::uint32_t* state, const std::uint8_t* chunks, std::size_t count);

// The same by the processor's SHA instructions. Returns false, and does nothing, where there are none.
bool sha256_compress_by_instruction(std::uint32_t* state, const std::uint8_t* chunks, std::size_t count);

class Sha256 {
 public:
  void update(const void* data, std::size_t size);
  Digest finish();

 private:
  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, 64> buffer_{};
  std::uint64_t total_ = 0;
};

}  // namespace headrace::core
