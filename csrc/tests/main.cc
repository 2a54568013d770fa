// Runs every registered case; exit status is the number of failures (at most 100).
#include <cstdio>
#include <cstring>

#include "tests/check.h"

namespace headrace::testing {
std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
}  // namespace headrace::testing

int main(int argc, char** argv) {
  int failures = 0, run = 0;
  for (const auto& test : headrace::testing::cases()) {
    if (argc > 1 && !std::strstr(test.name.c_str(), argv[1])) continue;
    ++run;
    try {
      test.body();
    } catch (const std::exception& error) {
      ++failures;
      std::printf("FAIL %s: %s\n", test.name.c_str(), error.what());
    }
  }
  std::printf("%d cases, %d failed\n", run, failures);
  return run == 0 ? 1 : (failures > 100 ? 100 : failures);
}
