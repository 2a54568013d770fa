// Inputs shared by the kernel tests: plain numbers from a seed, and a loop over instruction sets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/dispatch.h"

namespace headrace::testing {

// n floats, roughly uniform in [-2, 2), by a small linear congruential generator.
inline std::vector<float> numbers(std::int64_t n, std::uint32_t seed) {
  std::vector<float> out;
  std::uint32_t state = seed * 2654435761u + 12345u;
  for (std::int64_t i = 0; i < n; ++i) {
    state = state * 1664525u + 1013904223u;
    out.push_back(static_cast<float>(state >> 8) * 0x1p-22f - 2.0f);
  }
  return out;
}

template <typename Body>
void for_each_isa(const Body& body) {
  for (const std::string& name : kernels::available_isas()) {
    kernels::set_isa(name);
    body();
  }
}

}  // namespace headrace::testing
