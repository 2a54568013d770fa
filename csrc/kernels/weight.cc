#include "kernels/weight.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/threads.h"

namespace headrace::kernels {

void Weight::append(StoredMatrix matrix) {
  const auto [rows, columns] = std::visit([](const auto& m) { return std::pair(m.n(), m.k()); }, matrix);
  if (columns != k_) {
    throw std::invalid_argument("rows: " + std::to_string(columns) + " columns, the weight has " + std::to_string(k_));
  }
  quantised_ = quantised_ || std::holds_alternative<QuantisedMatrix>(matrix);
  segments_.push_back({n_, std::move(matrix)});
  n_ += rows;
}

std::int64_t Weight::bytes() const {
  std::int64_t total = 0;
  for (const Segment& s : segments_) total += std::visit([](const auto& m) { return m.bytes(); }, s.matrix);
  return total;
}

void Weight::gather_row(std::int64_t index, float* out) const {
  std::size_t s = segments_.size() - 1;
  while (segments_[s].first_row > index) --s;
  std::visit([&](const auto& m) { m.gather_row(index - segments_[s].first_row, out); }, segments_[s].matrix);
}

void embedding(const Weight& weight, const std::int32_t* ids, std::int64_t count, float* out) {
  parallel_for(count, [&, ids, out](std::int64_t i) { weight.gather_row(ids[i], out + i * weight.k()); });
}

}  // namespace headrace::kernels
