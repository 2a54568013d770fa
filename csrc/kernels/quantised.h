// A weight matrix (N, K) in one block format, repacked once for the integer kernels: panels of sixteen outputs. Codes
// come in vectors of 64 bytes, sixteen outputs times four values along k (a quad). The layout does not depend on the
// instruction set, and neither codes nor scales are rounded again.
//
// A panel is a region of codes, then one of scales, then (unless symmetric) one of minima:
//   8-bit codes: vector q holds quad q;
//   4-bit codes: vector 4 g + j, j < 4, holds quad 8 g + j in its low and quad 8 g + 4 + j in its high nibbles;
//   scales and minima: sixteen per group (two times sixteen where 16 values share a scale), half or float.
#pragma once

#include <cstdint>

#include "kernels/aligned.h"
#include "kernels/block_formats.h"
#include "kernels/packed.h"

namespace headrace::kernels {

inline constexpr std::int64_t kQuads = kGroupValues / 4;  // per group

// Where the parts of the panels lie: bytes from `data`, and inside a panel.
struct QuantisedPanels {
  const std::uint8_t* data;
  PanelForm form;
  std::int64_t k, panel_bytes, scales_at, minima_at;
};

class QuantisedMatrix {
 public:
  // Repacks n rows of blocks that lie one behind the other. k is a multiple of the format's block.
  // Throws std::bad_alloc.
  QuantisedMatrix(const BlockFormat& format, const std::uint8_t* rows, std::int64_t n, std::int64_t k);

  std::int64_t n() const { return n_; }
  std::int64_t k() const { return panels_.k; }
  std::int64_t num_panels() const { return (n_ + kPanel - 1) / kPanel; }
  std::int64_t bytes() const { return num_panels() * panels_.panel_bytes; }
  const QuantisedPanels& panels() const { return panels_; }

  // Dequantises row `index` to `out`, k values: one product, and one sum where there are minima, each rounded.
  void gather_row(std::int64_t index, float* out) const;

 private:
  std::int64_t n_;
  QuantisedPanels panels_;
  AlignedArray<std::uint8_t> data_;
};

}  // namespace headrace::kernels
