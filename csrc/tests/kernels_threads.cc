#include <sched.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "kernels/affinity.h"
#include "kernels/threads.h"
#include "tests/check.h"

using headrace::kernels::bind_threads;
using headrace::kernels::num_threads;
using headrace::kernels::parallel_for;
using headrace::kernels::set_num_threads;

namespace {

// How often each of `items` ran.
std::vector<int> counts(std::int64_t items) {
  std::vector<std::atomic<int>> ran(static_cast<std::size_t>(items));
  parallel_for(items, [&](std::int64_t i) { ran[static_cast<std::size_t>(i)].fetch_add(1); });
  std::vector<int> out;
  for (const auto& each : ran) out.push_back(each.load());
  return out;
}

}  // namespace

TEST(every_item_runs_once_whatever_the_thread_count) {
  for (int threads : {1, 2, 3, 7}) {
    set_num_threads(threads);
    CHECK_EQ(num_threads(), threads);
    for (std::int64_t items : {0, 1, 2, 3, 50, 1000}) CHECK_EQ(counts(items), std::vector<int>(items, 1));
  }
}

TEST(many_short_jobs_and_parked_threads) {
  set_num_threads(3);
  for (int round = 0; round < 2000; ++round) CHECK_EQ(counts(5), std::vector<int>(5, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));  // long enough for the workers to park
  CHECK_EQ(counts(100), std::vector<int>(100, 1));
}

TEST(a_call_from_inside_an_item_runs_in_place) {
  set_num_threads(3);
  std::atomic<int> inner{0};
  parallel_for(8, [&](std::int64_t) { parallel_for(10, [&](std::int64_t) { ++inner; }); });
  CHECK_EQ(inner.load(), 80);
}

TEST(callers_in_several_threads_do_not_disturb_each_other) {
  set_num_threads(3);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) wrong += counts(20) != std::vector<int>(20, 1);
    });
  }
  for (auto& caller : callers) caller.join();
  CHECK_EQ(wrong.load(), 0);
}

TEST(bad_thread_counts_are_refused) {
  CHECK_THROWS(std::invalid_argument, set_num_threads(0));
  CHECK_THROWS(std::invalid_argument, set_num_threads(5000));
}

TEST(bound_threads_stay_on_their_processor_and_do_all_the_work) {
  const int here = sched_getcpu();
  set_num_threads(3);
  CHECK(bind_threads({here, here, here}));
  std::vector<std::atomic<int>> elsewhere(1);
  const auto caller = std::this_thread::get_id();
  parallel_for(300, [&](std::int64_t) {
    if (std::this_thread::get_id() != caller && sched_getcpu() != here) elsewhere[0].fetch_add(1);
  });
  CHECK_EQ(elsewhere[0].load(), 0);
  CHECK_EQ(counts(100), std::vector<int>(100, 1));
  CHECK_THROWS(std::invalid_argument, bind_threads({here}));
  CHECK(!bind_threads({here, here, 1 << 20}));
  CHECK_EQ(counts(100), std::vector<int>(100, 1));
  CHECK(bind_threads({}));
}

TEST(a_thread_is_bound_and_released) {
  const int here = sched_getcpu();
  std::thread([&] {
    CHECK(headrace::kernels::bind_this_thread(here));
    CHECK_EQ(sched_getcpu(), here);
    CHECK(headrace::kernels::release_this_thread());
    CHECK(!headrace::kernels::bind_this_thread(-1));
    CHECK(!headrace::kernels::prefer_nodes({-1}));
  }).join();
}
