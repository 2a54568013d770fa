#include "kernels/packed.h"

#include "kernels/threads.h"

namespace headrace::kernels {

PackedMatrix::PackedMatrix(const float* rows, std::int64_t n, std::int64_t k)
    : n_(n), k_(k), groups_((n + kPanel * kGroupPanels - 1) / (kPanel * kGroupPanels)) {
  const std::int64_t panels = groups_ * kGroupPanels;
  data_ = aligned_array<float>(static_cast<std::size_t>(panels * kPanel * k));
  float* const data = data_.get();
  parallel_for(panels, [=](std::int64_t p) {
    float* const panel = data + p * kPanel * k;
    for (std::int64_t i = 0; i < k; ++i) {
      for (std::int64_t lane = 0; lane < kPanel; ++lane) {
        const std::int64_t row = p * kPanel + lane;
        panel[i * kPanel + lane] = row < n ? rows[row * k + i] : 0.0f;
      }
    }
  });
}

void PackedMatrix::gather_row(std::int64_t index, float* out) const {
  const float* const from = panel(index / kPanel) + index % kPanel;
  for (std::int64_t i = 0; i < k_; ++i) out[i] = from[i * kPanel];
}

void embedding(const PackedMatrix& weight, const std::int32_t* ids, std::int64_t count, float* out) {
  parallel_for(count, [&, ids, out](std::int64_t i) { weight.gather_row(ids[i], out + i * weight.k()); });
}

}  // namespace headrace::kernels
