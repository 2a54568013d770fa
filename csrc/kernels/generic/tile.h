// The register-tiled product that matmul and attention share. Its promise is the heart of batch invariance:
// every element of the result is one chain acc = fma(a[k], b[k], acc) over k = 0, 1, 2, ... from a given
// start. How many rows and panels are computed side by side changes the speed and never the chain.
#pragma once

#include "kernels/packed.h"
#include "kernels/simd/simd.h"

namespace headrace::kernels::HEADRACE_ISA {

// Right-hand side: element (k, n) of panel p lies at data[p * panel_stride + k * k_stride + n], n < 16. T is float,
// or Bf16, which widens exactly.
template <typename T>
struct PanelsOf {
  const T* data;
  std::int64_t panel_stride, k_stride;
};
using Panels = PanelsOf<float>;

// Left-hand side: element (m, k) lies at data[m * stride + k].
struct Rows {
  const float* data;
  std::int64_t stride;
};

template <int M, int P>
struct Tile {
  Vec acc[M][P];

  void clear() {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) acc[m][p] = zero();
    }
  }

  template <typename T>
  void multiply(Rows a, PanelsOf<T> b, std::int64_t depth) {
    for (std::int64_t k = 0; k < depth; ++k) {
      Vec column[P];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) column[p] = load(b.data + p * b.panel_stride + k * b.k_stride);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const Vec value = set1(a.data[m * a.stride + k]);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) acc[m][p] = fma(value, column[p], acc[m][p]);
      }
    }
  }

  // Calls put(m, p, accumulator) for every part of the tile.
  template <typename Put>
  void each(const Put& put) {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) put(m, p, acc[m][p]);
    }
  }
};

template <int M>
struct RowCount {
  static constexpr int value = M;
};

// Calls body(RowCount<M>{}) with M = rows, 1 <= rows <= M's start value.
template <int M = kTileRows, typename Body>
inline void with_row_count(std::int64_t rows, const Body& body) {
  if constexpr (M == 1) {
    body(RowCount<1>{});
  } else {
    if (rows == M) return body(RowCount<M>{});
    with_row_count<M - 1>(rows, body);
  }
}

// Cuts `rows` into tiles of at most `Most`, the last two of similar height; body(first row, RowCount<M>{}).
template <int Most = kTileRows, typename Body>
inline void for_row_tiles(std::int64_t rows, const Body& body) {
  for (std::int64_t row = 0; row < rows;) {
    const std::int64_t left = rows - row;
    const std::int64_t take = left <= Most ? left : left < 2 * Most ? (left + 1) / 2 : Most;
    with_row_count<Most>(take, [&](auto count) { body(row, count); });
    row += take;
  }
}

// out (rows, 16 * panels) = a @ b, added to what is there when `accumulate`.
inline void multiply_panels(Rows a, std::int64_t rows, Panels b, std::int64_t depth, std::int64_t panels, float* out,
                            std::int64_t out_stride, bool accumulate) {
  for_row_tiles(rows, [&](std::int64_t row, auto count) {
    constexpr int M = decltype(count)::value;
    const Rows tile_rows{a.data + row * a.stride, a.stride};
    const auto run = [&](auto width, std::int64_t panel) {
      constexpr int P = decltype(width)::value;
      float* const to = out + row * out_stride + panel * 16;
      Tile<M, P> tile;
      tile.clear();
      if (accumulate) tile.each([&](int m, int p, Vec& acc) { acc = load(to + m * out_stride + p * 16); });
      tile.multiply(tile_rows, Panels{b.data + panel * b.panel_stride, b.panel_stride, b.k_stride}, depth);
      tile.each([&](int m, int p, Vec& acc) { store(to + m * out_stride + p * 16, acc); });
    };
    constexpr int wide = tile_panels(M), half = wide > 1 ? wide / 2 : 1;
    std::int64_t panel = 0;
    for (; panel + wide <= panels; panel += wide) run(RowCount<wide>{}, panel);
    for (; panel + half <= panels; panel += half) run(RowCount<half>{}, panel);
    for (; panel < panels; ++panel) run(RowCount<1>{}, panel);
  });
}

}  // namespace headrace::kernels::HEADRACE_ISA
