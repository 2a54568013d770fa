// The kernels' thread pool. Work is cut into numbered items and dealt to the threads; who is done helps the others. So
// which thread runs which item is left to chance in the end, and an item's result must depend on its number alone.
// That is why the thread count never changes a bit.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

namespace headrace::kernels {

// Threads that share the work, the caller included; at first one per processor this process may use.
int num_threads();
// Throws std::invalid_argument unless 1 <= n <= 1024. Waits for running work.
void set_num_threads(int n);

// Thread i of the pool runs on processors[i] alone; the caller of a kernel is thread 0 and binds itself. Empty: no
// thread is bound. Waits for running work. Throws std::invalid_argument unless there is one processor for each
// thread. False when the system refused one of them.
bool bind_threads(const std::vector<int>& processors);
// Jobs shared out so far in this process: each ends in a barrier, which all threads wait for.
std::uint64_t num_barriers();

// Which items a thread has first: a stretch of consecutive ones, or every n-th of n threads.
enum class Deal { kStretches, kInTurn };

using ItemFunction = void (*)(const void* context, std::int64_t item);
void parallel_for_items(std::int64_t items, Deal deal, ItemFunction run, const void* context);

// Runs body(0) .. body(items - 1), each once, and returns when all are done. What body throws ends the process: others
// may still be at work on what the caller would take down on its way out. Runs in the
// calling thread alone when there is one item, and when the pool is busy (a call from inside an item or from
// a second thread).
template <typename Body>
void parallel_for(std::int64_t items, const Body& body, Deal deal = Deal::kStretches) {
  static_assert(std::is_invocable_v<const Body&, std::int64_t>);
  const ItemFunction run = [](const void* context, std::int64_t item) noexcept {
    (*static_cast<const Body*>(context))(item);
  };
  parallel_for_items(items, deal, run, &body);
}

}  // namespace headrace::kernels
