// y = x @ weight.T + bias on packed panels of float32 or bfloat16. Inside an item the panels stay in the cache while
// the rows pass by. K is never split, so there is nothing to combine.
#pragma once

#include "kernels/generic/tile.h"
#include "kernels/ops.h"

namespace headrace::kernels::HEADRACE_ISA {

inline void put_output(const OutputRows& out, std::int64_t row, std::int64_t panel, Vec acc) {
  const std::int64_t column = panel * kPanel, live = out.width - column;
  if (live <= 0) return;  // a padded panel
  float* const to = out.y + (row - out.row) * out.stride + column - out.column;
  if (live >= kPanel) return store(to, out.bias ? add(acc, load(out.bias + column)) : acc);
  store_part(to, out.bias ? add(acc, load_part(out.bias + column, live)) : acc, live);
}

template <typename T>
inline void dense_rows(const DenseArgs& args, const T* data, Stretch rows, Stretch panels) {
  const std::int64_t k = args.panels.k;
  for_row_tiles(rows.count, [&](std::int64_t at, auto count) {
    constexpr int M = decltype(count)::value, P = tile_panels(M);
    static_assert(kGroupPanels % P == 0 && kRowBlock % kTileRows == 0);
    const std::int64_t row = rows.first + at;
    for (std::int64_t panel = panels.first; panel < panels.first + panels.count; panel += P) {
      Tile<M, P> tile;
      tile.clear();
      tile.multiply({args.x + row * k, k}, PanelsOf<T>{data + panel * kPanel * k, kPanel * k, kPanel}, k);
      tile.each([&](int m, int p, Vec& acc) { put_output(args.out, row + m, panel + p, acc); });
    }
  });
}

// Rows times panels. Takes kGroupPanels panels at a time, so that their rereading by further tiles of rows hits the
// cache.
inline void dense_product(const DenseArgs& args, Stretch rows, Stretch panels) {
  for (std::int64_t i = 0; i < panels.count; i += kGroupPanels) {
    const Stretch few{panels.first + i, kGroupPanels};
    args.panels.floats ? dense_rows(args, args.panels.floats, rows, few)
                       : dense_rows(args, args.panels.halves, rows, few);
  }
}

}  // namespace headrace::kernels::HEADRACE_ISA
