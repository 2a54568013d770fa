#include "kernels/select.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>

#include "kernels/dispatch.h"

namespace headrace::kernels {
namespace {

constexpr std::int64_t kBlock = 64;

bool comes_first(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

std::vector<Candidate> collect(const float* x, std::int64_t n, float limit) {
  const auto ids = std::make_unique_for_overwrite<std::int32_t[]>(static_cast<std::size_t>(n));
  const std::int64_t count = table().collect_at_least(x, n, limit, ids.get());
  std::vector<Candidate> found;
  found.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) found.push_back({x[ids[i]], ids[i]});
  return found;
}

// A value that at least k entries reach: the k-th largest of the maxima of blocks. Minus infinity when k is
// too large for that.
float reached_by(const float* x, std::int64_t n, std::int64_t k) {
  const std::int64_t blocks = (n + kBlock - 1) / kBlock;
  if (k > blocks) return -std::numeric_limits<float>::infinity();
  std::vector<float> maxima(static_cast<std::size_t>(blocks));
  table().block_maxima(x, n, kBlock, maxima.data());
  std::nth_element(maxima.begin(), maxima.begin() + (k - 1), maxima.end(), std::greater<>());
  return maxima[static_cast<std::size_t>(k - 1)];
}

}  // namespace

std::vector<Candidate> best(const float* x, std::int64_t n, std::int64_t k) {
  if (k <= 0) return {};
  std::vector<Candidate> found = collect(x, n, reached_by(x, n, k));
  const auto kept = std::min<std::size_t>(static_cast<std::size_t>(k), found.size());
  std::partial_sort(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(kept), found.end(), comes_first);
  found.resize(kept);
  return found;
}

std::vector<Candidate> at_least(const float* x, std::int64_t n, float limit) {
  std::vector<Candidate> found = collect(x, n, limit);
  std::sort(found.begin(), found.end(), comes_first);
  return found;
}

}  // namespace headrace::kernels
