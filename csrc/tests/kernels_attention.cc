#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cache.h"
#include "kernels/dispatch.h"
#include "kernels/threads.h"
#include "tests/check.h"
#include "tests/kernels_inputs.h"

using namespace headrace::kernels;
using headrace::testing::for_each_isa;
using headrace::testing::numbers;

namespace {

constexpr std::int64_t kHeads = 6, kKvHeads = 2, kDepth = 20;

// One sequence of `length` positions in blocks of `block_size`, laid out backwards, everything else NaN. The
// last `rows` positions are queried.
struct Sequence {
  std::int64_t rows, length, block_size, blocks;
  std::vector<float> q, keys, values;
  mutable std::vector<float> k_cache, v_cache;  // a cache is handed over writable
  std::vector<std::int32_t> table;

  Sequence(std::int64_t rows_, std::int64_t length_, std::int64_t block_size_)
      : rows(rows_), length(length_), block_size(block_size_), blocks((length_ + block_size_ - 1) / block_size_) {
    q = numbers(rows * kHeads * kDepth, 1);
    keys = numbers(length * kKvHeads * kDepth, 2), values = numbers(length * kKvHeads * kDepth, 3);
    k_cache.assign((blocks + 1) * kKvHeads * block_size * kDepth, std::nanf(""));
    v_cache = k_cache;
    for (std::int64_t b = 0; b < blocks; ++b) table.push_back(static_cast<std::int32_t>(blocks - b));
    for (std::int64_t p = 0; p < length; ++p) {
      for (std::int64_t h = 0; h < kKvHeads; ++h) {
        const std::int64_t at = ((table[p / block_size] * kKvHeads + h) * block_size + p % block_size) * kDepth;
        for (std::int64_t d = 0; d < kDepth; ++d) {
          k_cache[at + d] = keys[(p * kKvHeads + h) * kDepth + d];
          v_cache[at + d] = values[(p * kKvHeads + h) * kDepth + d];
        }
      }
    }
  }

  KvCache cache(std::vector<float>& rows) const {
    return {rows.data(), KvFormat::kFloat32, kKvHeads * block_size * kDepth * 4};
  }

  // Rows [first, end) as one step.
  std::vector<float> attend(std::int64_t first, std::int64_t end, std::int32_t window) const {
    std::vector<float> out((end - first) * kHeads * kDepth);
    const std::int32_t start[] = {0, static_cast<std::int32_t>(end - first)};
    const std::int32_t seq_len[] = {static_cast<std::int32_t>(length - rows + end)};
    paged_attention({q.data() + first * kHeads * kDepth, cache(k_cache), cache(v_cache), table.data(), start, seq_len,
                     out.data(), end - first, 1, blocks, kHeads, kKvHeads, block_size, kDepth, 0.3f, window});
    return out;
  }

  double plain(std::int64_t row, std::int64_t head, std::int64_t d, std::int32_t window) const {
    const std::int64_t position = length - rows + row, h = head / (kHeads / kKvHeads);
    double total = 0, sum = 0;
    for (std::int64_t p = window ? std::max<std::int64_t>(0, position - window + 1) : 0; p <= position; ++p) {
      double score = 0;
      for (std::int64_t i = 0; i < kDepth; ++i) {
        score += static_cast<double>(q[(row * kHeads + head) * kDepth + i]) * keys[(p * kKvHeads + h) * kDepth + i];
      }
      const double weight = std::exp(0.3 * score);
      total += weight, sum += weight * values[(p * kKvHeads + h) * kDepth + d];
    }
    return sum / total;
  }
};

}  // namespace

TEST(attention_equals_the_plain_softmax) {
  for_each_isa([] {
    for (std::int32_t window : {0, 1, 40}) {
      const Sequence s(23, 90, 16);
      const auto out = s.attend(0, 23, window);
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(out.size()); ++i) {
        const std::int64_t row = i / (kHeads * kDepth), head = i / kDepth % kHeads;
        CHECK(std::abs(out[i] - s.plain(row, head, i % kDepth, window)) < 1e-5);
      }
    }
  });
}

TEST(attention_has_the_same_bits_row_by_row_shared_out_and_in_other_blocks) {
  for_each_isa([] {
    for (std::int32_t window : {0, 7, 600}) {
      const Sequence s(20, 1200, 32), other(20, 1200, 7);
      set_num_threads(1);
      const auto whole = s.attend(0, 20, window);
      CHECK_EQ(other.attend(0, 20, window), whole);
      set_num_threads(3);
      std::vector<float> rows;
      for (std::int64_t r = 0; r < 20; ++r) {
        const auto row = s.attend(r, r + 1, window);
        rows.insert(rows.end(), row.begin(), row.end());
      }
      CHECK_EQ(rows, whole);
    }
  });
}

TEST(rows_beyond_the_last_slice_become_zero) {
  const Sequence s(1, 5, 4);
  std::vector<float> out(2 * kHeads * kDepth, std::nanf(""));
  const std::int32_t start[] = {0, 1}, seq_len[] = {5};
  paged_attention({s.q.data(), s.cache(s.k_cache), s.cache(s.v_cache), s.table.data(), start, seq_len, out.data(), 2, 1,
                   s.blocks, kHeads, kKvHeads, s.block_size, kDepth, 0.3f, 0});
  for (std::int64_t i = 0; i < kHeads * kDepth; ++i) CHECK(std::isfinite(out[i]) && out[kHeads * kDepth + i] == 0);
}

namespace {

// A sequence's keys and values as codes of a format, blocks of 16 in order, those of keys and of values in turns.
struct Coded {
  KvFormat format;
  std::int64_t length, blocks, block_bytes;
  std::vector<std::uint8_t> rows;
  std::vector<std::int32_t> table;

  KvCache k() { return {rows.data(), format, 2 * block_bytes}; }
  KvCache v() { return {rows.data() + block_bytes, format, 2 * block_bytes}; }

  Coded(KvFormat as, const Sequence& s)
      : format(as), length(s.length), blocks((s.length + 15) / 16), block_bytes(16 * kKvHeads * row_bytes(as, kDepth)) {
    rows.assign(static_cast<std::size_t>(blocks * 2 * block_bytes), 0xFF);
    std::vector<std::int32_t> slots;
    for (std::int64_t p = 0; p < blocks; ++p) table.push_back(static_cast<std::int32_t>(p));
    for (std::int64_t p = 0; p < length; ++p) slots.push_back(static_cast<std::int32_t>(p));
    write_kv({s.keys.data(), s.values.data(), k(), v(), slots.data(), length, kKvHeads, 16, kDepth});
  }

  std::vector<float> attend(const Sequence& s, std::int64_t first, std::int64_t end, std::int32_t window) {
    std::vector<float> out((end - first) * kHeads * kDepth);
    const std::int32_t start[] = {0, static_cast<std::int32_t>(end - first)};
    const std::int32_t seq_len[] = {static_cast<std::int32_t>(length - s.rows + end)};
    paged_attention({s.q.data() + first * kHeads * kDepth, k(), v(), table.data(), start, seq_len, out.data(),
                     end - first, 1, blocks, kHeads, kKvHeads, 16, kDepth, 0.3f, window});
    return out;
  }
};

}  // namespace

// Rows of numbers in [-1, 1]: a code is off by half a step, 1/254 for int8, in keys, values and the like in queries.
TEST(attention_over_codes_is_near_the_plain_softmax) {
  for_each_isa([] {
    const Sequence s(23, 90, 16);
    for (const auto& [format, close] : {std::pair{KvFormat::kInt16, 1e-3}, std::pair{KvFormat::kInt8, 1.5e-2}}) {
      Coded coded(format, s);
      for (std::int32_t window : {0, 40}) {
        const auto out = coded.attend(s, 0, 23, window);
        for (std::int64_t i = 0; i < static_cast<std::int64_t>(out.size()); ++i) {
          const std::int64_t row = i / (kHeads * kDepth), head = i / kDepth % kHeads;
          CHECK(std::abs(out[i] - s.plain(row, head, i % kDepth, window)) < close);
        }
      }
    }
  });
}

TEST(attention_over_codes_has_the_same_bits_row_by_row_and_shared_out) {
  for_each_isa([] {
    const Sequence s(20, 1200, 16);
    for (const KvFormat format : {KvFormat::kInt16, KvFormat::kInt8}) {
      Coded coded(format, s);
      for (std::int32_t window : {0, 7, 600}) {
        set_num_threads(1);
        const auto whole = coded.attend(s, 0, 20, window);
        set_num_threads(3);
        std::vector<float> rows;
        for (std::int64_t r = 0; r < 20; ++r) {
          const auto row = coded.attend(s, r, r + 1, window);
          rows.insert(rows.end(), row.begin(), row.end());
        }
        CHECK_EQ(rows, whole);
      }
    }
  });
}

TEST(a_row_of_codes_is_zeros_when_next_to_nothing_and_nan_when_not_finite) {
  for_each_isa([] {
    for (const KvFormat format : {KvFormat::kInt16, KvFormat::kInt8}) {
      for (const auto& [value, scale] : {std::pair{1e-33f, 0.0f}, std::pair{INFINITY, std::nanf("")}}) {
        std::vector<float> x(kDepth, value);
        std::vector<std::uint8_t> cache(static_cast<std::size_t>(row_bytes(format, kDepth)), 0xFF), other = cache;
        const std::int32_t slot = 0;
        write_kv({x.data(), x.data(), {cache.data(), format, 0}, {other.data(), format, 0}, &slot, 1, 1, 1, kDepth});
        const std::int64_t codes = kDepth * element_bytes(format);
        for (std::int64_t i = 0; i < codes; ++i) CHECK_EQ(static_cast<int>(cache[i]), 0);
        float have;
        std::memcpy(&have, cache.data() + codes, sizeof have);
        CHECK(scale == scale ? have == scale : have != have);
      }
    }
  });
}
