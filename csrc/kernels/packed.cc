#include "kernels/packed.h"

#include <bit>

#include "kernels/threads.h"

namespace headrace::kernels {
namespace {

std::int64_t groups_of(std::int64_t n) { return (n + kPanel * kGroupPanels - 1) / (kPanel * kGroupPanels); }

template <typename T>
AlignedArray<T> pack(const T* rows, std::int64_t n, std::int64_t k) {
  const std::int64_t panels = groups_of(n) * kGroupPanels;
  AlignedArray<T> packed = aligned_array<T>(static_cast<std::size_t>(panels * kPanel * k));
  T* const data = packed.get();
  parallel_for(panels, [=](std::int64_t p) {
    T* const panel = data + p * kPanel * k;
    for (std::int64_t i = 0; i < k; ++i) {
      for (std::int64_t lane = 0; lane < kPanel; ++lane) {
        const std::int64_t row = p * kPanel + lane;
        panel[i * kPanel + lane] = row < n ? rows[row * k + i] : T{};
      }
    }
  });
  return packed;
}

float widen(float x) { return x; }
float widen(Bf16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }

template <typename T>
void gather(const T* panels, std::int64_t k, std::int64_t index, float* out) {
  const T* const from = panels + index / kPanel * kPanel * k + index % kPanel;
  for (std::int64_t i = 0; i < k; ++i) out[i] = widen(from[i * kPanel]);
}

}  // namespace

PackedMatrix::PackedMatrix(const float* rows, std::int64_t n, std::int64_t k)
    : n_(n), k_(k), groups_(groups_of(n)), floats_(pack(rows, n, k)) {}

PackedMatrix::PackedMatrix(const Bf16* rows, std::int64_t n, std::int64_t k)
    : n_(n), k_(k), groups_(groups_of(n)), halves_(pack(rows, n, k)) {}

std::int64_t PackedMatrix::bytes() const {
  return num_panels() * kPanel * k_ * static_cast<std::int64_t>(floats_ ? sizeof(float) : sizeof(Bf16));
}

void PackedMatrix::gather_row(std::int64_t index, float* out) const {
  floats_ ? gather(floats_.get(), k_, index, out) : gather(halves_.get(), k_, index, out);
}

}  // namespace headrace::kernels
