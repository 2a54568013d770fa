#include "kernels/block_formats.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/half.h"

namespace headrace::kernels {
namespace {

constexpr PanelForm kSymmetric4{4, 32, true, true}, kMinimum4{4, 32, false, true}, kWide4{4, 32, false, false};
constexpr PanelForm kSymmetric8{8, 32, true, true}, kMinimum8{8, 32, false, true}, kWide8{8, 32, false, false};
constexpr PanelForm kHalves8{8, 16, true, false};

constexpr BlockFormat kFormats[] = {
    {"Q4_0", BlockKind::kQ4_0, 32, 18, kSymmetric4}, {"Q4_1", BlockKind::kQ4_1, 32, 20, kMinimum4},
    {"Q5_0", BlockKind::kQ5_0, 32, 22, kSymmetric8}, {"Q5_1", BlockKind::kQ5_1, 32, 24, kMinimum8},
    {"Q8_0", BlockKind::kQ8_0, 32, 34, kSymmetric8}, {"Q4_K", BlockKind::kQ4_K, 256, 144, kWide4},
    {"Q5_K", BlockKind::kQ5_K, 256, 176, kWide8},    {"Q6_K", BlockKind::kQ6_K, 256, 210, kHalves8},
};

float half_at(const std::uint8_t* p) {
  std::uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return half_to_float(bits);
}

void set_scale(Group& group, float scale, float minimum = 0.0f) {
  group.scale[0] = group.scale[1] = scale;
  group.minimum = minimum;
}

// Byte i holds value i low and value i + 16 high; `fifth` points to 32 further bits, one per value, or is null.
void nibbles(Group& group, const std::uint8_t* low, const std::uint8_t* fifth, int offset) {
  std::uint32_t high = 0;
  if (fifth) std::memcpy(&high, fifth, sizeof high);
  for (int i = 0; i < 16; ++i) {
    group.codes[i] = static_cast<std::uint8_t>(((low[i] & 15) | (high >> i & 1) << 4) + offset);
    group.codes[i + 16] = static_cast<std::uint8_t>((low[i] >> 4 | (high >> (i + 16) & 1) << 4) + offset);
  }
}

void bytes(Group& group, const std::uint8_t* values) {
  for (int i = 0; i < 32; ++i) group.codes[i] = values[i] ^ 0x80;  // two's complement plus 128
}

// Q4_K and Q5_K: eight groups to a block, their 6-bit scales and minima packed into twelve bytes.
void set_k_scale(Group& group, const std::uint8_t* block, std::int64_t sub) {
  const std::uint8_t* const s = block + 4 + sub;
  const int scale = sub < 4 ? s[0] & 63 : (s[4] & 15) | s[-4] >> 6 << 4;
  const int minimum = sub < 4 ? s[4] & 63 : s[4] >> 4 | s[0] >> 6 << 4;
  set_scale(group, half_at(block) * static_cast<float>(scale), -(half_at(block + 2) * static_cast<float>(minimum)));
}

void k_nibbles(Group& group, const std::uint8_t* low, const std::uint8_t* fifth, std::int64_t sub) {
  for (int i = 0; i < 32; ++i) {
    const int high = fifth ? fifth[i] >> sub & 1 : 0;
    group.codes[i] = static_cast<std::uint8_t>((low[sub / 2 * 32 + i] >> 4 * (sub % 2) & 15) | high << 4);
  }
}

// Q6_K: 4 low bits, 2 high bits, and a signed scale for every 16 values.
void six_bits(Group& group, const std::uint8_t* block, std::int64_t sub) {
  const std::int64_t part = sub / 4, quarter = sub % 4;
  const std::uint8_t* const low = block + part * 64 + quarter % 2 * 32;
  const std::uint8_t* const high = block + 128 + part * 32;
  for (int i = 0; i < 32; ++i) {
    const int code = (low[i] >> 4 * (quarter / 2) & 15) | (high[i] >> 2 * quarter & 3) << 4;
    group.codes[i] = static_cast<std::uint8_t>(code + 128 - 32);
  }
  std::int8_t scales[2];
  std::memcpy(scales, block + 192 + 2 * sub, sizeof scales);
  group.minimum = 0.0f;
  for (int i = 0; i < 2; ++i) group.scale[i] = half_at(block + 208) * static_cast<float>(scales[i]);
}

}  // namespace

const BlockFormat& block_format(std::string_view name) {
  std::string known;
  for (const BlockFormat& format : kFormats) {
    if (format.name == name) return format;
    known += (known.empty() ? "" : ", ") + std::string(format.name);
  }
  throw std::invalid_argument("kind '" + std::string(name) + "' is unknown; choose one of " + known);
}

Group decode_group(BlockKind kind, const std::uint8_t* row, std::int64_t index) {
  const BlockFormat& format = kFormats[static_cast<int>(kind)];
  const std::int64_t groups = format.values / kGroupValues, sub = index % groups;
  const std::uint8_t* const b = row + index / groups * format.bytes;
  Group group;
  switch (kind) {
    case BlockKind::kQ4_0:
      set_scale(group, half_at(b)), nibbles(group, b + 2, nullptr, 0);
      break;
    case BlockKind::kQ4_1:
      set_scale(group, half_at(b), half_at(b + 2)), nibbles(group, b + 4, nullptr, 0);
      break;
    case BlockKind::kQ5_0:
      set_scale(group, half_at(b)), nibbles(group, b + 6, b + 2, 128 - 16);
      break;
    case BlockKind::kQ5_1:
      set_scale(group, half_at(b), half_at(b + 2)), nibbles(group, b + 8, b + 4, 0);
      break;
    case BlockKind::kQ8_0:
      set_scale(group, half_at(b)), bytes(group, b + 2);
      break;
    case BlockKind::kQ4_K:
      set_k_scale(group, b, sub), k_nibbles(group, b + 16, nullptr, sub);
      break;
    case BlockKind::kQ5_K:
      set_k_scale(group, b, sub), k_nibbles(group, b + 48, b + 16, sub);
      break;
    case BlockKind::kQ6_K:
      six_bits(group, b, sub);
      break;
  }
  return group;
}

}  // namespace headrace::kernels
