// The verification planner: its case table, brute force over every way to spend rows, and what it refuses; the cost
// model: medians, windows and counts.
#include <cmath>
#include <fstream>
#include <random>
#include <sstream>

#include "core/cost.h"
#include "core/verify.h"
#include "tests/check.h"

using namespace headrace::core;

namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> out;
  std::string part;
  std::istringstream stream(text);
  while (std::getline(stream, part, separator)) out.push_back(part);
  if (!text.empty() && text.back() == separator) out.emplace_back();
  return out;
}

template <typename T>
std::vector<T> numbers(const std::string& text) {
  std::istringstream stream(text);
  std::vector<T> out;
  for (T value; stream >> value;) out.push_back(value);
  return out;
}

struct Batch {
  std::vector<std::int32_t> num_drafts;
  std::vector<std::vector<double>> confidences;

  std::vector<VerifyRow> rows() const {
    std::vector<VerifyRow> out;
    for (std::size_t i = 0; i < num_drafts.size(); ++i) out.push_back({num_drafts[i], confidences[i]});
    return out;
  }
};

double rate(const Batch& batch, std::size_t row, std::int32_t draft) {
  double product = 1;
  for (std::int32_t j = 0; j <= draft && !batch.confidences[row].empty(); ++j) product *= batch.confidences[row][j];
  return product;
}

// The best expected output per total, over every way to spend the rows.
void spend(const Batch& batch, std::size_t row, std::int32_t used, double expected, std::vector<double>& best) {
  if (row == batch.num_drafts.size()) {
    best[used] = std::max(best[used], expected);
    return;
  }
  for (std::int32_t d = 0; d <= batch.num_drafts[row]; ++d) {
    spend(batch, row + 1, used + 1 + d, expected + 1, best);
    if (d < batch.num_drafts[row]) expected += rate(batch, row, d);
  }
}

}  // namespace

TEST(verify_case_table) {
  std::ifstream file(HEADRACE_VERIFY_CASES);
  int cases = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> f = split(line, ';');
    CHECK_EQ(f.size(), 11u);
    Batch batch{numbers<std::int32_t>(f[1]), {}};
    for (const std::string& row : split(f[2], '/'))
      if (batch.confidences.size() < batch.num_drafts.size()) batch.confidences.push_back(numbers<double>(row));
    const StepCost cost{numbers<std::int32_t>(f[3]), numbers<double>(f[4]), std::stod(f[5]), std::stod(f[6]), {}};
    const std::int32_t most = std::stoi(f[7]);
    const VerifyChoice choice = most > 0 ? choose_drafts(batch.rows(), cost, most) : choose_drafts(batch.rows(), cost);
    if (choice.total != std::stoi(f[8]) || choice.drafts != numbers<std::int32_t>(f[10]) ||
        std::abs(choice.expected - std::stod(f[9])) > 1e-12)
      headrace::testing::fail(__FILE__, __LINE__, f[0]);
    CHECK_EQ(drafts_for_total(batch.rows(), choice.total), choice.drafts);
    ++cases;
  }
  CHECK(cases >= 16);
}

TEST(verify_d_e3_table) {
  const Batch batch{{2, 2}, {{0.9, 0.5}, {0.8, 0.25}}};
  const StepCost cost{{2, 4, 6}, {1.0, 1.2, 2.0}, 0, 0, {}};
  const struct {
    std::int32_t total;
    double expected, time, speed;
  } table[] = {{2, 2.00, 1.0, 2.000},
               {3, 2.90, 1.2, 2.417},
               {4, 3.70, 1.2, 3.083},
               {5, 4.15, 2.0, 2.075},
               {6, 4.35, 2.0, 2.175}};
  for (const auto& line : table) {
    const VerifyChoice all = choose_drafts(batch.rows(), StepCost{}, line.total);  // no curve: as many as there is room
    CHECK_EQ(all.total, line.total);
    CHECK(std::abs(all.expected - line.expected) < 1e-12);
    CHECK_EQ(cost.time_ms(line.total, 2), line.time);
    CHECK(std::abs(all.expected / line.time - line.speed) < 5e-4);
  }
  const VerifyChoice choice = choose_drafts(batch.rows(), cost);
  CHECK_EQ(choice.total, 4);
  CHECK_EQ(choice.time_ms, 1.2);
  CHECK_EQ(choice.drafts, (std::vector<std::int32_t>{1, 1}));  // lengths 2 and 2
}

// Confidences are eighths, so sums are exact and equal totals really are equal.
TEST(verify_equals_brute_force_on_100000_instances) {
  std::mt19937 random(11);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  int trimmed = 0;
  for (int round = 0; round < 100000; ++round) {
    Batch batch;
    for (int s = 1 + below(4); s > 0; --s) {
      batch.num_drafts.push_back(below(4));
      batch.confidences.emplace_back();
      for (int d = below(5) ? batch.num_drafts.back() : 0; d > 0; --d)
        batch.confidences.back().push_back(below(9) / 8.0);
    }
    const auto num_seqs = static_cast<std::int32_t>(batch.num_drafts.size());
    StepCost cost;
    for (std::int32_t size = num_seqs + below(2); cost.sizes.size() < 6; size += 1 + below(4)) {
      cost.sizes.push_back(size);
      cost.times_ms.push_back((cost.times_ms.empty() ? 1 : cost.times_ms.back()) + below(4) / 4.0);
    }
    cost.slope_ms = below(3) / 16.0, cost.sampler_ms = below(3);
    std::vector<double> best(num_seqs + 13, -1);
    spend(batch, 0, 0, 0, best);
    std::int32_t total = num_seqs;
    for (std::int32_t t = num_seqs; t < static_cast<std::int32_t>(best.size()); ++t)
      if (best[t] > 0 && best[t] / cost.time_ms(t, num_seqs) > best[total] / cost.time_ms(total, num_seqs)) total = t;
    const VerifyChoice choice = choose_drafts(batch.rows(), cost);
    CHECK_EQ(choice.total, total);
    CHECK_EQ(choice.expected, best[total]);
    std::int32_t spent = num_seqs, all = num_seqs;
    for (std::size_t i = 0; i < batch.num_drafts.size(); ++i) spent += choice.drafts[i], all += batch.num_drafts[i];
    CHECK_EQ(spent, total);
    trimmed += spent < all && spent > num_seqs;
  }
  CHECK(trimmed > 10000);
}

TEST(verify_refuses_what_cannot_be) {
  CHECK_THROWS(InvalidField, check_confidences(std::vector<double>{0.5, -0.1}));
  CHECK_THROWS(InvalidField, check_confidences(std::vector<double>{std::nan("")}));
  CHECK_THROWS(InvalidField, check_cost({{2, 2}, {1, 1}, 0, 0, {}}));
  CHECK_THROWS(InvalidField, check_cost({{2}, {1, 1}, 0, 0, {}}));
  CHECK_THROWS(InvalidField, check_cost({{2}, {0}, 0, 0, {}}));
  CHECK_THROWS(InvalidField, check_cost({{2}, {1}, -1, 0, {}}));
  CHECK_THROWS(InvalidField, check_cost({{2}, {1}, 0, 0, {{1, -1}}}));
}

TEST(cost_median) {
  CHECK_EQ(median({3, 1, 2}), 2.0);
  CHECK_EQ(median({4, 1, 2, 3}), 2.5);
  CHECK_THROWS(std::logic_error, median({}));
}

TEST(cost_slope_is_a_median_of_medians) {
  CostModel model({2, 4, 8}, {1.0, 1.5, 2.0});
  CHECK_EQ(model.slope_ms(), 0.0);
  for (int i = 0; i < 9; ++i) model.add_step(2, 2.0);
  CHECK_EQ(model.slope_ms(), 0.0);  // a size counts from 10 samples on
  model.add_step(2, 100.0);
  CHECK_EQ(model.slope_ms(), 0.5);
  for (int i = 0; i < 10; ++i) model.add_step(4, 2.5), model.add_step(8, 2.8);
  CHECK(std::abs(model.slope_ms() - 0.25) < 1e-12);  // of 0.5, 0.25 and 0.1
  CHECK(std::abs(model.snapshot().slope_ms - 0.25) < 1e-12);
}

TEST(cost_slope_is_never_negative) {
  CostModel model({2}, {1.0});
  for (int i = 0; i < 20; ++i) model.add_step(2, 0.5);
  CHECK_EQ(model.slope_ms(), 0.0);
}

TEST(cost_window_of_steps) {
  CostModel model({2, 4}, {1.0, 1.0});
  for (int i = 0; i < 5000; ++i) model.add_step(2, 3.0);
  CHECK_EQ(model.slope_ms(), 1.0);
  for (int i = 0; i < 4991; ++i) model.add_step(4, 5.0);
  CHECK_EQ(model.slope_ms(), 1.0);  // 9 steps of size 2 are left: they do not count, size 4 has 1.0 too
  for (int i = 0; i < 5000; ++i) model.add_step(4, 3.0);
  CHECK_EQ(model.slope_ms(), 0.5);
}

TEST(cost_sampler_times) {
  CostModel model({2}, {1.0});
  for (int i = 0; i < 4; ++i) model.add_sampler(3, 2.0);
  CHECK_EQ(model.sampler_ms(3), 0.0);
  model.add_sampler(7, 4.0);
  CHECK_EQ(model.sampler_ms(3), 2.0);  // over all numbers of sequences
  CHECK_EQ(model.sampler_ms(5), 2.0);
  for (int i = 0; i < 5; ++i) model.add_sampler(3, 6.0);
  CHECK_EQ(model.sampler_ms(3), 6.0);  // the last nine: four of 2, five of 6
  const StepCost cost = model.snapshot();
  CHECK_EQ(cost.time_ms(2, 3), 7.0);
  CHECK_EQ(cost.time_ms(2, 5), 1.0 + model.sampler_ms(5));
}

TEST(cost_refuses_what_cannot_be) {
  CHECK_THROWS(InvalidField, CostModel({}, {}));
  CHECK_THROWS(InvalidField, CostModel({4, 2}, {1, 1}));
  CostModel model({2}, {1.0});
  CHECK_THROWS(InvalidField, model.add_step(3, 1.0));
  CHECK_THROWS(InvalidField, model.add_step(2, -1.0));
  CHECK_THROWS(InvalidField, model.add_sampler(1, std::nan("")));
}
