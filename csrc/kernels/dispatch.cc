#include "kernels/dispatch.h"

#include <atomic>
#include <stdexcept>

namespace headrace::kernels {

extern const Table scalar_table;
#if defined(HEADRACE_X86)
extern const Table avx2_table, avx512_table;
#endif

namespace {

std::vector<const Table*> runnable() {
  std::vector<const Table*> tables;
#if defined(HEADRACE_X86)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni");
  if (avx2 && avx512) tables.push_back(&avx512_table);
  if (avx2) tables.push_back(&avx2_table);
#endif
  tables.push_back(&scalar_table);
  return tables;
}

std::atomic<const Table*>& chosen() {
  static std::atomic<const Table*> slot{runnable().front()};
  return slot;
}

}  // namespace

const Table& table() { return *chosen().load(std::memory_order_relaxed); }

std::string isa() { return table().name; }

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Table* t : runnable()) names.emplace_back(t->name);
  return names;
}

void set_isa(std::string_view name) {
  for (const Table* t : runnable()) {
    if (name == t->name) return chosen().store(t);
  }
  std::string known;
  for (const std::string& each : available_isas()) known += (known.empty() ? "" : ", ") + each;
  throw std::invalid_argument("isa '" + std::string(name) + "' is not available here; choose one of " + known);
}

}  // namespace headrace::kernels
