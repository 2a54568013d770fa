#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "kernels/dispatch.h"
#include "tests/check.h"
#include "tests/kernels_inputs.h"

using namespace headrace::kernels;
using headrace::testing::for_each_isa;
using headrace::testing::numbers;

TEST(isa_can_be_forced_and_unknown_names_are_refused) {
  for (const std::string& name : available_isas()) {
    set_isa(name);
    CHECK_EQ(isa(), name);
  }
  CHECK_EQ(available_isas().back(), std::string("scalar"));
  CHECK_THROWS(std::invalid_argument, set_isa("mmx"));
}

TEST(exp_is_accurate_to_two_units_in_the_last_place) {
  // sum_exp of one element is exp itself.
  for_each_isa([] {
    for (float x = -87.0f; x < 88.0f; x += 0.0137f) {
      const float have = table().sum_exp(&x, 1, 0);
      const double want = std::exp(static_cast<double>(x));
      CHECK(std::abs(have - want) <= 2.5e-7 * want);
    }
  });
}

TEST(exp_at_the_edges) {
  for_each_isa([] {
    constexpr float inf = std::numeric_limits<float>::infinity();
    const float zeros[] = {-inf, -1e30f, -88.0f, -200.0f};
    for (float x : zeros) CHECK_EQ(table().sum_exp(&x, 1, 0), 0.0f);
    const float one = 0.0f, large = 100.0f, nan = std::nanf("");
    CHECK_EQ(table().sum_exp(&one, 1, 0), 1.0f);
    CHECK_EQ(table().sum_exp(&large, 1, 0), inf);
    CHECK(std::isnan(table().sum_exp(&nan, 1, 0)));
  });
}

TEST(row_top_takes_the_lowest_id_and_sees_nan_anywhere) {
  for_each_isa([] {
    for (std::int64_t n = 1; n < 70; ++n) {
      std::vector<float> x = numbers(n, 5);
      for (float& v : x) v = std::round(v);
      const RowTop top = table().row_top(x.data(), n);
      for (std::int64_t i = 0; i < n; ++i) CHECK(i < top.id ? x[i] < top.value : x[i] <= top.value);
      CHECK_EQ(x[top.id], top.value);
      x[n / 2] = std::nanf("");
      CHECK(std::isnan(table().row_top(x.data(), n).value));
    }
  });
}

TEST(collect_and_count_agree_with_a_plain_loop) {
  for_each_isa([] {
    for (std::int64_t n = 1; n < 50; ++n) {
      std::vector<float> x = numbers(n, 6);
      for (float& v : x) v = std::round(2 * v);
      std::vector<std::int32_t> ids(n), want;
      for (std::int64_t i = 0; i < n; ++i) {
        if (x[i] >= 1) want.push_back(static_cast<std::int32_t>(i));
      }
      ids.resize(table().collect_at_least(x.data(), n, 1, ids.data()));
      CHECK_EQ(ids, want);
      for (std::int64_t id = 0; id < n; ++id) {
        std::int64_t ahead = 0;
        for (std::int64_t i = 0; i < n; ++i) ahead += x[i] > x[id] || (x[i] == x[id] && i < id);
        CHECK_EQ(table().count_ahead(x.data(), n, x[id], static_cast<std::int32_t>(id)), ahead);
      }
    }
  });
}

TEST(block_maxima_cover_a_ragged_end) {
  for_each_isa([] {
    const std::vector<float> x = numbers(70, 7);
    float maxima[3];
    table().block_maxima(x.data(), 70, 32, maxima);
    for (int b = 0; b < 3; ++b) {
      float want = x[b * 32];
      for (int i = b * 32; i < std::min(70, (b + 1) * 32); ++i) want = std::max(want, x[i]);
      CHECK_EQ(maxima[b], want);
    }
  });
}

TEST(draws_do_not_depend_on_the_list_around_an_id) {
  for_each_isa([] {
    const std::vector<float> z = numbers(100, 8);
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      const NoiseKey key{seed << 30, seed};
      const std::int32_t winner = table().draw(z.data(), nullptr, 100, key);
      std::vector<float> kept;
      std::vector<std::int32_t> ids;
      for (std::int32_t id = 99; id >= 0; --id) {
        if (id % 3 == winner % 3) ids.push_back(id), kept.push_back(z[id]);
      }
      CHECK_EQ(table().draw(kept.data(), ids.data(), static_cast<std::int64_t>(ids.size()), key), winner);
    }
  });
}
