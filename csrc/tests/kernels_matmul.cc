#include <cmath>
#include <vector>

#include "kernels/dispatch.h"
#include "kernels/threads.h"
#include "tests/check.h"
#include "tests/kernels_inputs.h"

using namespace headrace::kernels;
using headrace::testing::for_each_isa;
using headrace::testing::numbers;

namespace {

struct Shape {
  std::int64_t m, k, n;
};

std::vector<float> linear(const std::vector<float>& x, const PackedMatrix& w, const float* bias) {
  const auto tokens = static_cast<std::int64_t>(x.size()) / w.k();
  std::vector<float> y(static_cast<std::size_t>(tokens * w.n()));
  table().linear({x.data(), &w, bias, y.data(), tokens});
  return y;
}

}  // namespace

TEST(linear_equals_the_plain_sum) {
  for_each_isa([] {
    for (const Shape& s : {Shape{1, 1, 1}, {3, 5, 7}, {13, 37, 65}, {100, 20, 130}, {25, 64, 64}}) {
      const auto x = numbers(s.m * s.k, 1), w = numbers(s.n * s.k, 2), bias = numbers(s.n, 3);
      const auto y = linear(x, PackedMatrix(w.data(), s.n, s.k), bias.data());
      for (std::int64_t m = 0; m < s.m; ++m) {
        for (std::int64_t n = 0; n < s.n; ++n) {
          double want = bias[n];
          for (std::int64_t k = 0; k < s.k; ++k) want += static_cast<double>(x[m * s.k + k]) * w[n * s.k + k];
          CHECK(std::abs(y[m * s.n + n] - want) < 1e-4);
        }
      }
    }
  });
}

TEST(a_row_has_the_same_bits_in_every_batch_and_with_every_thread_count) {
  for_each_isa([] {
    constexpr std::int64_t k = 33, n = 90;
    const auto x = numbers(40 * k, 1), w = numbers(n * k, 2);
    const PackedMatrix packed(w.data(), n, k);
    const auto first = linear({x.begin(), x.begin() + k}, packed, nullptr);
    for (std::int64_t m = 1; m <= 40; ++m) {
      set_num_threads(1 + static_cast<int>(m % 3));
      auto y = linear({x.begin(), x.begin() + m * k}, packed, nullptr);
      y.resize(n);
      CHECK_EQ(y, first);
    }
  });
}

TEST(embedding_returns_the_rows_that_were_packed) {
  constexpr std::int64_t k = 19, n = 70;
  const auto w = numbers(n * k, 2);
  const PackedMatrix packed(w.data(), n, k);
  const std::vector<std::int32_t> ids{69, 0, 16, 15, 64};
  std::vector<float> out(ids.size() * k);
  embedding(packed, ids.data(), static_cast<std::int64_t>(ids.size()), out.data());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    for (std::int64_t j = 0; j < k; ++j) CHECK_EQ(out[i * k + j], w[ids[i] * k + j]);
  }
}
