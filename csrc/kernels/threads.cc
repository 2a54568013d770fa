#include "kernels/threads.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "kernels/affinity.h"

namespace headrace::kernels {
namespace {

constexpr auto kSpin = std::chrono::microseconds(50);

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// True as soon as `done` is; false when it still is not after the spin time.
template <typename Condition>
bool spin_until(Condition done) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

int usable_processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  const unsigned n = std::thread::hardware_concurrency();
  return n ? static_cast<int>(n) : 1;
}

// One job at a time. `ticket_` is (job number << 32 | items left): a thread claims an item by counting it
// down with a compare-exchange. A thread that wakes late, in the next job, fails that exchange; one that
// succeeds knows its job is unfinished, so run_, context_ and items_ are that job's. They are read only after
// a successful claim.
class Pool {
 public:
  explicit Pool(int threads) { start(threads); }

  int size() const { return size_.load(); }
  std::uint64_t jobs() const { return jobs_.load(std::memory_order_relaxed); }

  void resize(int threads) {
    const std::lock_guard lock(submit_);
    stop();
    processors_.clear();
    start(threads);
  }

  bool bind(const std::vector<int>& processors) {
    const std::lock_guard lock(submit_);
    stop();
    processors_ = processors;
    refused_.store(0);
    bound_.store(0);
    start(size());
    while (bound_.load() + 1 < static_cast<int>(processors_.size())) std::this_thread::yield();
    return refused_.load() == 0;
  }

  void run(std::int64_t items, ItemFunction body, const void* context) {
    if (items > 1 && size() > 1 && !inside_item() && submit_.try_lock()) {
      const std::lock_guard lock(submit_, std::adopt_lock);
      constexpr std::int64_t most = 0x7fffffff;
      for (std::int64_t first = 0; first < items; first += most) {
        run_job(first, std::min(most, items - first), body, context);
      }
    } else {
      for (std::int64_t i = 0; i < items; ++i) body(context, i);
    }
  }

 private:
  static bool& inside_item() {
    thread_local bool inside = false;
    return inside;
  }

  void run_job(std::int64_t first, std::int64_t count, ItemFunction body, const void* context) {
    first_ = first, items_ = count, run_ = body, context_ = context;
    unfinished_.store(static_cast<std::uint32_t>(count), std::memory_order_relaxed);
    const std::uint64_t job = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
    ticket_.store(job << 32 | static_cast<std::uint64_t>(count), std::memory_order_release);
    jobs_.fetch_add(1, std::memory_order_relaxed);
    wake();
    while (claim_and_run()) {
    }
    const auto finished = [this] { return unfinished_.load(std::memory_order_acquire) == 0; };
    if (spin_until(finished)) return;
    while (const std::uint32_t left = unfinished_.load(std::memory_order_acquire)) {
      unfinished_.wait(left, std::memory_order_acquire);
    }
  }

  bool claim_and_run() {
    std::uint64_t seen = ticket_.load(std::memory_order_acquire);
    do {
      if (static_cast<std::uint32_t>(seen) == 0) return false;
    } while (!ticket_.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel, std::memory_order_acquire));
    inside_item() = true;
    run_(context_, first_ + items_ - static_cast<std::uint32_t>(seen));
    inside_item() = false;
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_one();
    return true;
  }

  void wake() {
    wakes_.fetch_add(1, std::memory_order_seq_cst);
    wakes_.notify_all();
  }

  void work(int index) {
    if (!processors_.empty()) {
      if (!bind_this_thread(processors_[static_cast<std::size_t>(index)])) refused_.fetch_add(1);
      bound_.fetch_add(1);
    }
    const auto something = [this] {
      return static_cast<std::uint32_t>(ticket_.load(std::memory_order_acquire)) != 0 || stopping_.load();
    };
    while (!stopping_.load()) {
      if (claim_and_run() || spin_until(something)) continue;
      const std::uint32_t before = wakes_.load(std::memory_order_seq_cst);
      if (!something()) wakes_.wait(before, std::memory_order_seq_cst);
    }
  }

  void start(int threads) {
    size_.store(threads);
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  }

  void stop() {
    stopping_.store(true);
    wake();
    for (auto& worker : workers_) worker.join();
    workers_.clear();
    stopping_.store(false);
  }

  std::mutex submit_;
  std::atomic<int> size_{1};
  std::vector<std::thread> workers_;
  std::vector<int> processors_;
  std::atomic<int> bound_{0};
  std::atomic<int> refused_{0};
  std::atomic<std::uint64_t> ticket_{0};
  std::atomic<std::uint32_t> unfinished_{0};
  std::atomic<std::uint32_t> wakes_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> jobs_{0};
  std::int64_t first_ = 0;
  std::int64_t items_ = 0;
  ItemFunction run_ = nullptr;
  const void* context_ = nullptr;
};

// Never destroyed: threads may outlive main. A forked child has no threads, so it makes its own pool when it
// needs one.
std::atomic<Pool*>& pool_slot() {
  static std::atomic<Pool*> slot{nullptr};
  return slot;
}

Pool& pool() {
  if (Pool* ready = pool_slot().load()) return *ready;
  static std::mutex making;
  const std::lock_guard lock(making);
  if (!pool_slot().load()) {
    static const int once = pthread_atfork(nullptr, nullptr, [] { pool_slot().store(nullptr); });
    static_cast<void>(once);
    pool_slot().store(new Pool(usable_processors()));
  }
  return *pool_slot().load();
}

}  // namespace

int num_threads() { return pool().size(); }

std::uint64_t num_barriers() { return pool().jobs(); }

void set_num_threads(int n) {
  if (n < 1 || n > 1024) throw std::invalid_argument("num_threads must be between 1 and 1024");
  if (n != num_threads()) pool().resize(n);
}

bool bind_threads(const std::vector<int>& processors) {
  if (!processors.empty() && static_cast<int>(processors.size()) != num_threads()) {
    throw std::invalid_argument("bind_threads needs one processor for each thread, or none");
  }
  return pool().bind(processors);
}

void parallel_for_items(std::int64_t items, ItemFunction run, const void* context) { pool().run(items, run, context); }

}  // namespace headrace::kernels
