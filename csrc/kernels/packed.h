// A weight matrix (N, K) repacked once for the kernels: column panels of sixteen outputs, k-major inside a
// panel, so that element (n, k) lies at [n / 16][k][n % 16]. N is padded with zeros to whole groups of four
// panels. The layout does not depend on the instruction set.
#pragma once

#include <cstdint>

#include "kernels/aligned.h"

namespace headrace::kernels {

inline constexpr std::int64_t kPanel = 16;       // outputs per panel
inline constexpr std::int64_t kGroupPanels = 4;  // panels that one work item of a matmul covers

class PackedMatrix {
 public:
  // Copies rows (n, k), row-major. Throws std::bad_alloc.
  PackedMatrix(const float* rows, std::int64_t n, std::int64_t k);

  std::int64_t n() const { return n_; }
  std::int64_t k() const { return k_; }
  std::int64_t groups() const { return groups_; }
  std::int64_t bytes() const { return groups_ * kGroupPanels * kPanel * k_ * std::int64_t{sizeof(float)}; }
  const float* panel(std::int64_t index) const { return data_.get() + index * kPanel * k_; }

  // Copies row `index` of the original matrix, k values, to `out`.
  void gather_row(std::int64_t index, float* out) const;

 private:
  std::int64_t n_, k_, groups_;
  AlignedArray<float> data_;
};

// out (count, K) = rows of the matrix by id, each in [0, N).
void embedding(const PackedMatrix& weight, const std::int32_t* ids, std::int64_t count, float* out);

}  // namespace headrace::kernels
