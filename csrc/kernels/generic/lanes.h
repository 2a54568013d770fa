// Products with sixteen queries side by side in the lanes of a vector, in floats or in exact integers. Either way a
// lane's result is its own: a chain acc = fma(a[k], b[k], acc) over k = 0, 1, 2, ..., or an integer sum, which has one
// value whatever the order.
#pragma once

#include "kernels/generic/kv_rows.h"

namespace headrace::kernels::HEADRACE_ISA {

inline constexpr std::int64_t kTile = 32;  // positions that share one rescaling
static_assert(kPartition % kTile == 0);

// float32 operands. `kCell` elements make one step of a product.
struct FloatDots {
  using Element = float;
  using Sum = Vec;
  static constexpr std::int64_t kCell = 1;

  static Sum none() { return zero(); }
  static Vec column(const float* p) { return load(p); }
  static Vec spread(const float* p) { return set1(*p); }
  static Sum add(Sum acc, Vec column, Vec value) { return fma(value, column, acc); }
  static Vec as_float(Sum sum) { return sum; }
};

// int16 operands, two to a step.
struct PairDots {
  using Element = std::int16_t;
  using Sum = IntVec;
  static constexpr std::int64_t kCell = 2;

  static Sum none() { return set1_int(0); }
  static IntVec column(const std::int16_t* p) { return load_pairs(p); }
  static IntVec spread(const std::int16_t* p) { return set1_pair(p); }
  static Sum add(Sum acc, IntVec column, IntVec value) { return add_pairs(acc, column, value); }
  static Vec as_float(Sum sum) { return to_float_signed(sum); }
};

// What all lanes share: element (row, step) lies at data[row * row_stride + step * step_stride].
template <class D>
struct Spread {
  const typename D::Element* data;
  std::int64_t row_stride, step_stride;
};

// What differs by lane: the cells of vector p at a step lie at data[p * vector_stride + step * step_stride].
template <class D>
struct Lanes {
  const typename D::Element* data;
  std::int64_t vector_stride, step_stride;
};

template <int I>
struct Index {
  static constexpr int value = I;
};

// Calls body(Index<0>{}) to body(Index<N - 1>{}). Written out before the compiler decides which array elements become
// registers; a loop that it unrolls itself comes too late for that, and every sum would pass through memory.
template <int N, typename Body>
[[gnu::always_inline]] inline void repeat(const Body& body) {
  if constexpr (N > 0) {
    repeat<N - 1>(body);
    body(Index<N - 1>{});
  }
}

// Calls put(m, p, sum over the steps of row m times vector p) for M rows and P vectors, m and p as Index.
template <class D, int M, int P, typename Put>
[[gnu::always_inline]] inline void multiply_lanes(Spread<D> a, Lanes<D> b, std::int64_t steps, const Put& put) {
  typename D::Sum sums[M * P];
  repeat<M * P>([&](auto i) __attribute__((always_inline)) { sums[i.value] = D::none(); });
  for (std::int64_t k = 0; k < steps; ++k) {
    decltype(D::column(b.data)) column[P];
    repeat<P>([&](auto p) __attribute__((always_inline)) {
      column[p.value] = D::column(b.data + p.value * b.vector_stride + k * b.step_stride);
    });
    repeat<M>([&](auto m) __attribute__((always_inline)) {
      const auto value = D::spread(a.data + m.value * a.row_stride + k * a.step_stride);
      repeat<P>([&](auto p) __attribute__((always_inline)) {
        typename D::Sum& sum = sums[m.value * P + p.value];
        sum = D::add(sum, column[p.value], value);
      });
    });
  }
  repeat<M * P>([&](auto i)
                    __attribute__((always_inline)) { put(i.value / P, i.value % P, D::as_float(sums[i.value])); });
}

}  // namespace headrace::kernels::HEADRACE_ISA
