// y = x @ weight.T + bias on packed panels. A work item is a block of rows times one group of panels; inside
// it the panels stay in the cache while the rows pass by. K is never split, so there is nothing to combine.
#pragma once

#include "kernels/generic/tile.h"
#include "kernels/ops.h"
#include "kernels/threads.h"

namespace headrace::kernels::HEADRACE_ISA {

inline constexpr std::int64_t kRowBlock = 96;  // a multiple of every kTileRows

inline void put_output(const LinearArgs& args, std::int64_t row, std::int64_t panel, Vec acc) {
  const std::int64_t n = args.weight->n(), column = panel * kPanel;
  const std::int64_t live = n - column;
  if (live <= 0) return;  // a padded panel
  float* const to = args.y + row * n + column;
  if (live >= kPanel) return store(to, args.bias ? add(acc, load(args.bias + column)) : acc);
  store_part(to, args.bias ? add(acc, load_part(args.bias + column, live)) : acc, live);
}

inline void linear_item(const LinearArgs& args, std::int64_t first_row, std::int64_t rows,
                        std::int64_t group) {
  const std::int64_t k = args.weight->k(), first_panel = group * kGroupPanels;
  for_row_tiles(rows, [&](std::int64_t row, auto count) {
    constexpr int M = decltype(count)::value, P = tile_panels(M);
    static_assert(kGroupPanels % P == 0);
    const Rows x{args.x + (first_row + row) * k, k};
    for (std::int64_t panel = first_panel; panel < first_panel + kGroupPanels; panel += P) {
      Tile<M, P> tile;
      tile.clear();
      tile.multiply(x, {args.weight->panel(panel), kPanel * k, kPanel}, k);
      tile.each([&](int m, int p, Vec& acc) { put_output(args, first_row + row + m, panel + p, acc); });
    }
  });
}

inline void linear(const LinearArgs& args) {
  const std::int64_t groups = args.weight->groups();
  const std::int64_t blocks = (args.tokens + kRowBlock - 1) / kRowBlock;
  parallel_for(blocks * groups, [&](std::int64_t item) {
    const std::int64_t row = item / groups * kRowBlock, left = args.tokens - row;
    linear_item(args, row, left < kRowBlock ? left : kRowBlock, item % groups);
  });
}

}  // namespace headrace::kernels::HEADRACE_ISA
