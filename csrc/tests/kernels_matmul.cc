#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/dispatch.h"
#include "kernels/matmul.h"
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

// Appended in two parts, so that a weight of several segments is what is tested.
std::unique_ptr<Weight> pack(const std::vector<float>& w, std::int64_t n, std::int64_t k) {
  auto weight = std::make_unique<Weight>(k);
  const std::int64_t first = n / 3;
  if (first > 0) weight->append(PackedMatrix(w.data(), first, k));
  weight->append(PackedMatrix(w.data() + first * k, n - first, k));
  return weight;
}

std::vector<float> product(const std::vector<float>& x, const Weight& w, const float* bias) {
  const auto tokens = static_cast<std::int64_t>(x.size()) / w.k();
  std::vector<float> y(static_cast<std::size_t>(tokens * w.n()));
  linear({{x.data(), w.k()}, &w, bias, y.data(), tokens});
  return y;
}

}  // namespace

TEST(linear_equals_the_plain_sum) {
  for_each_isa([] {
    for (const Shape& s : {Shape{1, 1, 1}, {3, 5, 7}, {13, 37, 65}, {100, 20, 130}, {25, 64, 64}}) {
      const auto x = numbers(s.m * s.k, 1), w = numbers(s.n * s.k, 2), bias = numbers(s.n, 3);
      const auto y = product(x, *pack(w, s.n, s.k), bias.data());
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
    const auto packed = pack(w, n, k);
    const auto first = product({x.begin(), x.begin() + k}, *packed, nullptr);
    for (std::int64_t m = 1; m <= 40; ++m) {
      set_num_threads(1 + static_cast<int>(m % 3));
      auto y = product({x.begin(), x.begin() + m * k}, *packed, nullptr);
      y.resize(n);
      CHECK_EQ(y, first);
    }
  });
}

TEST(embedding_returns_the_rows_that_were_packed) {
  constexpr std::int64_t k = 19, n = 70;
  const auto w = numbers(n * k, 2);
  const auto packed = pack(w, n, k);
  const std::vector<std::int32_t> ids{69, 0, 16, 15, 64};
  std::vector<float> out(ids.size() * k);
  embedding(*packed, ids.data(), static_cast<std::int64_t>(ids.size()), out.data());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    for (std::int64_t j = 0; j < k; ++j) CHECK_EQ(out[i * k + j], w[ids[i] * k + j]);
  }
}

TEST(bfloat16_gives_the_bits_of_its_float_copy) {
  constexpr std::int64_t k = 29, n = 83, m = 14;
  const auto x = numbers(m * k, 1);
  auto w = numbers(n * k, 2);
  std::vector<Bf16> halves;
  for (float& value : w) {
    std::uint32_t raw;
    std::memcpy(&raw, &value, sizeof raw);
    halves.push_back({static_cast<std::uint16_t>(raw >> 16)});
    raw &= 0xFFFF0000u;
    std::memcpy(&value, &raw, sizeof raw);
  }
  Weight narrow(k);
  narrow.append(PackedMatrix(halves.data(), n, k));
  CHECK_EQ(2 * narrow.bytes(), PackedMatrix(w.data(), n, k).bytes());
  for_each_isa([&] { CHECK_EQ(product(x, narrow, nullptr), product(x, *pack(w, n, k), nullptr)); });
}

TEST(a_part_of_another_width_is_refused) {
  const auto w = numbers(40, 1);
  Weight weight(8);
  CHECK_THROWS(std::invalid_argument, weight.append(PackedMatrix(w.data(), 4, 10)));
  CHECK_EQ(weight.n(), 0);
}
