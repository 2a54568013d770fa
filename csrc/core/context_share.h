// Which positions of a prompt belong to which of several context-parallel ranks. Pure arithmetic of positions: never of
// chunks, hits or time, so that a position's KV is found where it was written, however its prompt was cut.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/types.h"

namespace headrace::core {

// Ranks take positions to and fro: with three ranks 0 1 2 2 1 0 0 1 2 2 1 0 ... A period of 2 * size consecutive
// positions gives each rank two of them, and, where it begins at a multiple, the same number of keys to look at.
struct ContextShare {
  std::int32_t size = 1, rank = 0;

  std::int32_t period() const { return 2 * size; }
  std::int32_t owner(std::int32_t position) const {
    const std::int32_t place = position % period();
    return std::min(place, period() - 1 - place);
  }
  bool owns(std::int32_t position) const { return size == 1 || owner(position) == rank; }
  // Positions below `position` that `of` owns.
  std::int32_t owned_before(std::int32_t position, std::int32_t of) const {
    const std::int32_t place = position % period();
    return 2 * (position / period()) + (place > of) + (place > period() - 1 - of);
  }
  // Rows each rank has of a slice of q positions, padding included: the same on all, whatever they own of it.
  std::int32_t rows(std::int32_t q) const { return size == 1 ? q : 2 * ceil_div(q, period()); }
};

}  // namespace headrace::core
