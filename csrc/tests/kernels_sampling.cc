#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/dispatch.h"
#include "kernels/rules.h"
#include "kernels/sampling.h"
#include "kernels/select.h"
#include "tests/check.h"
#include "tests/kernels_inputs.h"

using namespace headrace::kernels;
using headrace::testing::for_each_isa;
using headrace::testing::numbers;

namespace {

std::int32_t sample_one(const std::vector<float>& x, float temperature, std::int32_t k, float p, float min_p,
                        std::int64_t seed) {
  std::int32_t out = -2;
  const std::int64_t position = 11;
  sample({x.data(), 1, static_cast<std::int64_t>(x.size()), &temperature, &k, &p, &min_p, &seed, &position, &out});
  return out;
}

}  // namespace

TEST(best_agrees_with_a_full_sort) {
  for_each_isa([] {
    for (std::int64_t n : {1, 63, 64, 65, 1000, 5000}) {
      auto x = numbers(n, 4);
      for (float& v : x) v = std::round(v * 50);
      std::vector<std::int32_t> order;
      for (std::int32_t i = 0; i < n; ++i) order.push_back(i);
      std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return x[a] > x[b]; });
      for (std::int64_t k : {0, 1, 5, 60, 900, 6000}) {
        const auto found = best(x.data(), n, k);
        CHECK_EQ(static_cast<std::int64_t>(found.size()), std::min(k, n));
        for (std::size_t i = 0; i < found.size(); ++i) CHECK_EQ(found[i].id, order[i]);
      }
    }
  });
}

TEST(sampling_never_leaves_the_filters) {
  for_each_isa([] {
    const auto x = numbers(300, 9);
    const auto top = best(x.data(), 300, 4);
    for (std::int64_t seed = 0; seed < 200; ++seed) {
      const std::int32_t id = sample_one(x, 5.0f, 4, 1.0f, 0.0f, seed);
      CHECK(std::any_of(top.begin(), top.end(), [&](const Candidate& c) { return c.id == id; }));
      CHECK_EQ(sample_one(x, 5.0f, 0, 0.0f, 0.0f, seed), top[0].id);
      CHECK_EQ(sample_one(x, 5.0f, 0, 1.0f, 1.0f, seed), top[0].id);
    }
  });
}

TEST(odd_knobs_and_rows_still_give_an_answer) {
  for_each_isa([] {
    constexpr float inf = std::numeric_limits<float>::infinity();
    const float nan = std::nanf("");
    std::vector<float> x = numbers(40, 2);
    x[3] = -inf;
    for (float t : {1e-45f, 1e-6f, 1.0f, 1e30f, inf, nan}) {
      for (float p : {-1.0f, 0.5f, 2.0f, nan}) {
        const std::int32_t id = sample_one(x, t, 1 << 30, p, p, 1);
        CHECK(id >= 0 && id < 40 && id != 3);
      }
    }
    x[39] = nan;
    CHECK_EQ(sample_one(x, 1.0f, 0, 1.0f, 0.0f, 1), -1);
    CHECK_EQ(sample_one(std::vector<float>(5, -inf), 0.0f, 0, 1.0f, 0.0f, 1), -1);
  });
}

TEST(logprobs_of_a_row_sum_to_one) {
  for_each_isa([] {
    const auto x = numbers(100, 3);
    const std::int32_t id = 17;
    float chosen, values[100];
    std::int32_t rank, ids[100];
    gather_logprobs({x.data(), &id, 1, 100, 100, &chosen, &rank, ids, values});
    double total = 0;
    for (float v : values) total += std::exp(static_cast<double>(v));
    CHECK(std::abs(total - 1) < 1e-5);
    CHECK_EQ(ids[rank - 1], id);
    CHECK_EQ(values[rank - 1], chosen);
  });
}

TEST(rules_follow_their_order) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  std::vector<float> x{4, -4, 1, 2, 3};
  const std::int32_t none[] = {0, 0}, one[] = {0, 1}, three[] = {0, 3}, four[] = {0, 4};
  const std::int32_t bias[] = {2}, allow[] = {0, 1, 2, 4}, prompt[] = {1}, output[] = {0, 0, 1}, ban[] = {4};
  const float added[] = {10}, repetition[] = {2}, presence[] = {0.5f}, frequency[] = {0.25f};
  RuleArgs args{x.data(),        1,          5,     {four, allow}, {one, bias}, {one, prompt},
                {three, output}, {one, ban}, added, repetition,    presence,    frequency};
  apply_rules(args);
  CHECK_EQ(x, (std::vector<float>{2 - 0.5f - 0.5f, -8 - 0.25f - 0.5f, 11, -inf, -inf}));
  std::vector<float> untouched = numbers(5, 1);
  const std::vector<float> before = untouched;
  const float off[] = {0}, neutral[] = {1};
  args = {untouched.data(), 1,           5,     {none, allow}, {none, bias}, {none, prompt},
          {three, output},  {none, ban}, added, neutral,       off,          off};
  apply_rules(args);
  CHECK_EQ(untouched, before);
}
