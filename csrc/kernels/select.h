// The best entries of a row without sorting all of it. Order everywhere: value descending, then id ascending.
#pragma once

#include <cstdint>
#include <vector>

namespace headrace::kernels {

struct Candidate {
  float value;
  std::int32_t id;
};

// The best k of x (n); all when k >= n, and fewer when NaN entries, which never count, leave fewer. Sorted.
std::vector<Candidate> best(const float* x, std::int64_t n, std::int64_t k);

// All entries with value >= limit, sorted.
std::vector<Candidate> at_least(const float* x, std::int64_t n, float limit);

}  // namespace headrace::kernels
