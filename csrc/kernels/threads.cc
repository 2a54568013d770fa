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

// The items of a job that one thread has first. `ticket` is (job number << 32 | items left): whoever takes one counts
// it down with a compare-exchange.
struct alignas(64) Lane {
  std::atomic<std::uint64_t> ticket{0};
};

// One job at a time. A thread takes the items of its own lane, in rising order, then those of the others. One that
// wakes late, in the next job, fails the exchange; one that succeeds knows its job is unfinished, so run_, context_,
// first_, items_ and deal_ are that job's. They are read only after an item has been taken.
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

  void run(std::int64_t items, Deal deal, ItemFunction body, const void* context) {
    if (items > 1 && size() > 1 && !inside_item() && submit_.try_lock()) {
      const std::lock_guard lock(submit_, std::adopt_lock);
      constexpr std::int64_t most = 0x7fffffff;
      for (std::int64_t first = 0; first < items; first += most) {
        first_ = first, items_ = std::min(most, items - first), deal_ = deal, run_ = body, context_ = context;
        run_job();
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

  void run_job() {
    unfinished_.store(static_cast<std::uint32_t>(items_), std::memory_order_relaxed);
    const std::uint64_t job = (lanes_[0].ticket.load(std::memory_order_relaxed) >> 32) + 1;
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      lanes_[lane].ticket.store(job << 32 | static_cast<std::uint64_t>(share(lane)), std::memory_order_release);
    }
    jobs_.fetch_add(1, std::memory_order_relaxed);
    wake();
    while (take_and_run(0)) {
    }
    const auto finished = [this] { return unfinished_.load(std::memory_order_acquire) == 0; };
    if (spin_until(finished)) return;
    while (const std::uint32_t left = unfinished_.load(std::memory_order_acquire)) {
      unfinished_.wait(left, std::memory_order_acquire);
    }
  }

  // Where a lane's stretch begins.
  std::int64_t begin(std::size_t lane) const {
    return items_ * static_cast<std::int64_t>(lane) / static_cast<std::int64_t>(lanes_.size());
  }

  // How many items a lane has at first, and which one is taken when `left` are left of them.
  std::int64_t share(std::size_t lane) const {
    const auto lanes = static_cast<std::int64_t>(lanes_.size()), index = static_cast<std::int64_t>(lane);
    return deal_ == Deal::kStretches ? begin(lane + 1) - begin(lane) : (items_ - index + lanes - 1) / lanes;
  }
  std::int64_t item(std::size_t lane, std::int64_t left) const {
    const std::int64_t at = share(lane) - left;
    const auto lanes = static_cast<std::int64_t>(lanes_.size()), index = static_cast<std::int64_t>(lane);
    return first_ + (deal_ == Deal::kStretches ? begin(lane) + at : index + at * lanes);
  }

  // The thread's own lane first, then those after it in a circle.
  bool take_and_run(std::size_t own) {
    for (std::size_t i = 0, lane = own; i < lanes_.size(); ++i, lane = lane + 1 < lanes_.size() ? lane + 1 : 0) {
      if (take_from(lane)) return true;
    }
    return false;
  }

  bool take_from(std::size_t lane) {
    std::atomic<std::uint64_t>& ticket = lanes_[lane].ticket;
    std::uint64_t seen = ticket.load(std::memory_order_acquire);
    do {
      if (static_cast<std::uint32_t>(seen) == 0) return false;
    } while (!ticket.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel, std::memory_order_acquire));
    inside_item() = true;
    run_(context_, item(lane, static_cast<std::uint32_t>(seen)));
    inside_item() = false;
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_one();
    return true;
  }

  bool something_to_take() const {
    for (const Lane& lane : lanes_) {
      if (static_cast<std::uint32_t>(lane.ticket.load(std::memory_order_acquire)) != 0) return true;
    }
    return false;
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
    const auto something = [this] { return something_to_take() || stopping_.load(); };
    while (!stopping_.load()) {
      if (take_and_run(static_cast<std::size_t>(index)) || spin_until(something)) continue;
      const std::uint32_t before = wakes_.load(std::memory_order_seq_cst);
      if (!something()) wakes_.wait(before, std::memory_order_seq_cst);
    }
  }

  void start(int threads) {
    size_.store(threads);
    lanes_ = std::vector<Lane>(static_cast<std::size_t>(threads));
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
  std::vector<Lane> lanes_;  // one for each thread, the caller's first
  std::atomic<std::uint32_t> unfinished_{0};
  std::atomic<std::uint32_t> wakes_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> jobs_{0};
  std::int64_t first_ = 0;
  std::int64_t items_ = 0;
  Deal deal_ = Deal::kStretches;
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

void parallel_for_items(std::int64_t items, Deal deal, ItemFunction run, const void* context) {
  pool().run(items, deal, run, context);
}

}  // namespace headrace::kernels
