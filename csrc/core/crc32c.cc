#include "core/crc32c.h"

#include <array>
#include <cstring>

namespace headrace::core {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // reflected

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}

constexpr std::array<std::uint32_t, 256> kTable = make_table();

#if defined(__x86_64__)
// The instruction takes three cycles and can begin every cycle: three lanes side by side keep it busy.
constexpr std::size_t kLane = 1024;  // bytes

// What a lane of zeros makes of the register. It is linear, so the sum of what becomes of its four bytes.
class LaneShift {
 public:
  LaneShift() {
    for (std::size_t byte = 0; byte < 4; ++byte)
      for (std::uint32_t value = 1; value < 256; ++value) {
        const std::uint32_t rest = value & (value - 1), bit = value ^ rest;
        of_[byte][value] = rest ? of_[byte][rest] ^ of_[byte][bit] : shifted(value << (8 * byte));
      }
  }
  std::uint32_t operator()(std::uint32_t crc) const {
    return of_[0][crc & 0xff] ^ of_[1][crc >> 8 & 0xff] ^ of_[2][crc >> 16 & 0xff] ^ of_[3][crc >> 24];
  }

 private:
  static std::uint32_t shifted(std::uint32_t crc) {
    for (std::size_t i = 0; i < kLane; ++i) crc = (crc >> 8) ^ kTable[crc & 0xff];
    return crc;
  }
  std::array<std::array<std::uint32_t, 256>, 4> of_{};
};

std::uint64_t word_at(const std::uint8_t* data) {
  std::uint64_t word;
  std::memcpy(&word, data, 8);
  return word;
}

__attribute__((target("sse4.2"))) std::uint32_t by_instruction(const std::uint8_t* data, std::size_t size,
                                                               std::uint32_t crc) {
  static const LaneShift shift;
  std::uint64_t wide = static_cast<std::uint32_t>(~crc);
  for (; size >= 3 * kLane; data += 3 * kLane, size -= 3 * kLane) {
    std::uint64_t second = 0, third = 0;
    for (std::size_t i = 0; i < kLane; i += 8) {
      wide = __builtin_ia32_crc32di(wide, word_at(data + i));
      second = __builtin_ia32_crc32di(second, word_at(data + kLane + i));
      third = __builtin_ia32_crc32di(third, word_at(data + 2 * kLane + i));
    }
    const std::uint32_t two = shift(static_cast<std::uint32_t>(wide)) ^ static_cast<std::uint32_t>(second);
    wide = shift(two) ^ static_cast<std::uint32_t>(third);
  }
  for (; size >= 8; data += 8, size -= 8) wide = __builtin_ia32_crc32di(wide, word_at(data));
  auto narrow = static_cast<std::uint32_t>(wide);
  for (; size > 0; ++data, --size) narrow = __builtin_ia32_crc32qi(narrow, *data);
  return ~narrow;
}
#endif

}  // namespace

std::uint32_t crc32c_by_table(const void* data, std::size_t size, std::uint32_t crc) {
  const auto* bytes = static_cast<const std::uint8_t*>(data);
  crc = ~crc;
  for (std::size_t i = 0; i < size; ++i) crc = (crc >> 8) ^ kTable[(crc ^ bytes[i]) & 0xff];
  return ~crc;
}

std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t crc) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return by_instruction(static_cast<const std::uint8_t*>(data), size, crc);
#endif
  return crc32c_by_table(data, size, crc);
}

}  // namespace headrace::core
