// The block formats of GGUF files whose weights the kernels use as they are stored. A block is a scale (with some a
// minimum) and a run of small integers; here it is taken apart into groups of 32 values, all of one shape.
// Nothing is rounded a second time: scales are exact products of what the file holds.
#pragma once

#include <cstdint>
#include <string_view>

namespace headrace::kernels {

inline constexpr std::int64_t kGroupValues = 32;  // values along k that share one scale of the activations

enum class BlockKind { kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K };

// How a matrix of some kind lies in packed panels. A value is scale * (code - offset) when `symmetric`, with offset
// 8 for 4-bit codes and 128 for 8-bit ones, else scale * code + minimum.
struct PanelForm {
  int code_bits;     // 4 or 8
  int scale_values;  // 32, or 16: values that share a scale
  bool symmetric;
  bool half_scales;  // scales and minima are half precision in the file and stay so; else they are float

  friend bool operator==(const PanelForm&, const PanelForm&) = default;
};

struct BlockFormat {
  std::string_view name;
  BlockKind kind;
  std::int64_t values, bytes;  // of one block
  PanelForm form;
};

// By the name in the file format, "Q4_0" for example. Throws std::invalid_argument.
const BlockFormat& block_format(std::string_view name);

// 32 consecutive values. scale[1] belongs to the last 16 and equals scale[0] in all but Q6_K.
struct Group {
  std::uint8_t codes[kGroupValues];
  float scale[2];
  float minimum;  // 0 when symmetric
};

// Group number `index` of a row of blocks.
Group decode_group(BlockKind kind, const std::uint8_t* row, std::int64_t index);

}  // namespace headrace::kernels
