// Checks of index contents, one compare per entry. What they refuse would read or write foreign memory.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace headrace::kernels {

inline void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

// Every value in [low, high).
inline void require_range(const std::int32_t* values, std::int64_t count, std::int64_t low, std::int64_t high,
                          const char* name) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (values[i] >= low && values[i] < high) continue;
    throw std::invalid_argument(std::string(name) + "[" + std::to_string(i) + "] is " + std::to_string(values[i]) +
                                ", outside [" + std::to_string(low) + ", " + std::to_string(high) + ")");
  }
}

// at (rows + 1): from 0, never falling, to at most `total`.
inline void require_offsets(const std::int32_t* at, std::int64_t rows, std::int64_t total, const char* name) {
  bool fine = at[0] == 0 && at[rows] <= total;
  for (std::int64_t i = 0; i < rows; ++i) fine = fine && at[i] <= at[i + 1];
  require(fine, std::string(name) + " must rise from 0 to at most " + std::to_string(total));
}

}  // namespace headrace::kernels
