#include "kernels/affinity.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <climits>

namespace headrace::kernels {
namespace {

// From the kernel's interface; its header is not everywhere.
constexpr int kDefaultPolicy = 0, kPreferredPolicy = 1, kInterleavePolicy = 3;
constexpr int kMaxNodes = 1024;
constexpr int kWordBits = static_cast<int>(sizeof(unsigned long) * CHAR_BIT);

// Read once, before anything is pinned: the mask of the thread that loaded the library.
const cpu_set_t& processors_at_start() {
  static const cpu_set_t set = [] {
    cpu_set_t all;
    CPU_ZERO(&all);
    sched_getaffinity(0, sizeof all, &all);
    return all;
  }();
  return set;
}

const cpu_set_t& read_early = processors_at_start();

}  // namespace

bool bind_this_thread(int processor) {
  if (processor < 0 || processor >= CPU_SETSIZE) return false;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(processor), &one);
  return sched_setaffinity(0, sizeof one, &one) == 0;
}

bool release_this_thread() { return sched_setaffinity(0, sizeof(cpu_set_t), &read_early) == 0; }

bool prefer_nodes(const std::vector<int>& nodes) {
  std::array<unsigned long, kMaxNodes / kWordBits> mask{};
  for (const int node : nodes) {
    if (node < 0 || node >= kMaxNodes) return false;
    mask[static_cast<std::size_t>(node / kWordBits)] |= 1UL << (node % kWordBits);
  }
#ifdef SYS_set_mempolicy
  const int policy = nodes.empty() ? kDefaultPolicy : nodes.size() == 1 ? kPreferredPolicy : kInterleavePolicy;
  return syscall(SYS_set_mempolicy, policy, nodes.empty() ? nullptr : mask.data(), nodes.empty() ? 0 : kMaxNodes) == 0;
#else
  return nodes.empty();
#endif
}

}  // namespace headrace::kernels
