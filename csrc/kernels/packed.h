// A weight matrix (N, K) of floating-point numbers repacked once for the kernels: column panels of sixteen outputs,
// k-major inside a panel, so that element (n, k) lies at [n / 16][k][n % 16]. N is padded with zeros to whole groups
// of four panels. The layout does not depend on the instruction set. Elements are stored as given: float32, or
// bfloat16 at half the bytes. The arithmetic is float32 either way, so a bfloat16 matrix gives the bits that its
// float32 copy gives.
#pragma once

#include <cstdint>

#include "kernels/aligned.h"

namespace headrace::kernels {

inline constexpr std::int64_t kPanel = 16;       // outputs per panel
inline constexpr std::int64_t kGroupPanels = 4;  // panels that are padded and worked on together

// The upper half of a float32.
struct Bf16 {
  std::uint16_t bits;
};

// Panels of the matrix; exactly one of the two pointers is set.
struct DensePanels {
  const float* floats;
  const Bf16* halves;
  std::int64_t k;
};

class PackedMatrix {
 public:
  // Copies rows (n, k), row-major. Throws std::bad_alloc.
  PackedMatrix(const float* rows, std::int64_t n, std::int64_t k);
  PackedMatrix(const Bf16* rows, std::int64_t n, std::int64_t k);

  std::int64_t n() const { return n_; }
  std::int64_t k() const { return k_; }
  std::int64_t num_panels() const { return groups_ * kGroupPanels; }
  std::int64_t bytes() const;
  DensePanels panels() const { return {floats_.get(), halves_.get(), k_}; }

  // Copies row `index` of the original matrix, k values, to `out`.
  void gather_row(std::int64_t index, float* out) const;

 private:
  std::int64_t n_, k_, groups_;
  AlignedArray<float> floats_;
  AlignedArray<Bf16> halves_;
};

}  // namespace headrace::kernels
