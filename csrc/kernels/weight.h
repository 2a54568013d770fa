// A weight (N, K) as the ops see it: matrices stacked along n, each in its own storage. So a fused projection whose
// parts are stored in different formats is still one weight. Never included from generic/.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "kernels/packed.h"
#include "kernels/quantised.h"

namespace headrace::kernels {

using StoredMatrix = std::variant<PackedMatrix, QuantisedMatrix>;

struct Segment {
  std::int64_t first_row;
  StoredMatrix matrix;
};

class Weight {
 public:
  explicit Weight(std::int64_t k) : k_(k) {}
  Weight(const Weight&) = delete;
  Weight& operator=(const Weight&) = delete;

  // Appends rows. Throws std::invalid_argument unless the matrix has k columns.
  void append(StoredMatrix matrix);

  std::int64_t n() const { return n_; }
  std::int64_t k() const { return k_; }
  std::int64_t bytes() const;
  bool quantised() const { return quantised_; }  // in any segment
  const std::vector<Segment>& segments() const { return segments_; }

  // Row `index` as float32, k values.
  void gather_row(std::int64_t index, float* out) const;

 private:
  std::int64_t n_ = 0, k_;
  bool quantised_ = false;
  std::vector<Segment> segments_;
};

// out (count, K) = rows of the weight by id, each in [0, N).
void embedding(const Weight& weight, const std::int32_t* ids, std::int64_t count, float* out);

}  // namespace headrace::kernels
