#include "kernels/half.h"

#include <bit>
#include <cmath>

namespace headrace::kernels {

float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31, fraction = half & 0x3FFu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float tiny = std::ldexp(static_cast<float>(fraction), -24);  // zero and subnormal numbers
  return sign ? -tiny : tiny;
}

std::uint16_t float_to_half(float value) {
  const auto raw = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(raw >> 16 & 0x8000u);
  const float size = std::fabs(value);
  if (size != size) return static_cast<std::uint16_t>(sign | 0x7C00u | (raw >> 13 & 0x3FFu) | 1u);
  if (size >= 65520.0f) return static_cast<std::uint16_t>(sign | 0x7C00u);
  if (size < 0x1p-14f) {  // subnormal: a count of 2^-24
    return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(std::nearbyintf(size * 0x1p24f)));
  }
  const std::uint32_t body = (raw & 0x7FFFFFFFu) - (112u << 23);
  return static_cast<std::uint16_t>(sign | (body + 0xFFFu + (body >> 13 & 1u)) >> 13);
}

}  // namespace headrace::kernels
