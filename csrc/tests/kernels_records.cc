#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/records.h"
#include "kernels/threads.h"
#include "tests/check.h"
#include "tests/kernels_inputs.h"

using namespace headrace::kernels;
using headrace::testing::for_each_isa;
using headrace::testing::numbers;

namespace {

constexpr std::int64_t kHeads = 5, kDepth = 64, kReach = 9, kLength = 30, kSize = 4, kMost = 6;

// Codes without a NaN, from a seed.
std::vector<std::uint8_t> codes(std::int64_t n, std::uint32_t seed) {
  std::vector<std::uint8_t> out;
  for (const float x : numbers(n, seed)) out.push_back(static_cast<std::uint8_t>((x + 2.0f) * 60.0f) & 0xBF);
  return out;
}

double e4m3_value(std::uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double size = exponent ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9);
  return code & 0x80 ? -size : size;
}

double e2m1_value(int code) {
  const double sizes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code & 8 ? -sizes[code & 7] : sizes[code & 7];
}

// One sequence whose blocks hold window records, and behind them 4-bit ones of as many rows; nothing lies after the
// last byte. Blocks are laid out backwards.
struct Sequence {
  const std::int64_t wide = record_bytes(RecordFormat::kMxfp8, kDepth),
                     narrow = record_bytes(RecordFormat::kKv4, kDepth);
  std::int64_t blocks = (kLength + kSize - 1) / kSize;
  std::vector<std::uint8_t> pool;
  std::vector<std::int32_t> table;

  Sequence() : pool(codes(blocks * kSize * (wide + narrow), 3)) {
    for (std::int64_t b = blocks; b > 0; --b) table.push_back(static_cast<std::int32_t>(b - 1));
    for (std::int64_t r = 0; r < blocks * kSize; ++r) {
      for (std::int64_t g = 0; g < kDepth / 32; ++g)
        byte(window(), r, kDepth + g) = static_cast<std::uint8_t>(117 + r % 3);
      for (std::int64_t g = 0; g < kDepth / 16; ++g) byte(shared(), r, kDepth / 2 + g) &= 0x27;
    }
  }
  PagedRecords section(std::int64_t offset, std::int64_t width) const {
    return {pool.data(), kSize * (wide + narrow), blocks, table.data(), 1, blocks, offset, kSize, width};
  }
  PagedRecords window() const { return section(0, wide); }
  PagedRecords shared() const { return section(kSize * wide, narrow); }
  std::uint8_t& byte(const PagedRecords& records, std::int64_t row, std::int64_t at) {
    return pool[static_cast<std::size_t>(records.at(0, row) + at - pool.data())];
  }
  double window_value(std::int64_t row, std::int64_t d) const {
    const std::uint8_t* const record = window().at(0, row);
    return std::ldexp(e4m3_value(record[d]), record[kDepth + d / 32] - 127);
  }
  double shared_value(std::int64_t row, std::int64_t d) const {
    const std::uint8_t* const record = shared().at(0, row);
    return e2m1_value(record[d / 2] >> (d % 2 ? 4 : 0) & 15) * e4m3_value(record[kDepth / 2 + d / 16]);
  }
};

struct Step {
  std::int64_t first, end;
  std::vector<float> q, out;
  std::vector<std::int32_t> chosen;
  std::int32_t starts[2], length, floor = 0;
};

const std::vector<float> kSink = {0.5f, -1.0f, 0.0f, 2.0f, 1.0f};

// Rows [first, end) of the sequence; row p chooses every third entry up to its own position.
Step attend(const Sequence& sequence, std::int64_t first, std::int64_t end) {
  Step step{first, end, {}, std::vector<float>((end - first) * kHeads * kDepth), {}, {0, 0}, 0};
  const std::vector<float> all = numbers(kLength * kHeads * kDepth, 7);
  step.q.assign(all.begin() + first * kHeads * kDepth, all.begin() + end * kHeads * kDepth);
  for (std::int64_t p = first; p < end; ++p) {
    for (std::int64_t i = 0; i < kMost; ++i) step.chosen.push_back(static_cast<std::int32_t>(3 * i <= p ? 3 * i : -1));
  }
  step.starts[1] = static_cast<std::int32_t>(end - first), step.length = static_cast<std::int32_t>(end);
  latent_attention({step.q.data(), step.starts, &step.length, &step.floor, sequence.window(), sequence.shared(),
                    RecordFormat::kKv4, step.chosen.data(), kSink.data(), step.out.data(), end - first, 1, kHeads,
                    kDepth, kReach, kMost});
  return step;
}

// By the plain formula, of row i of a step.
std::vector<double> plain(const Sequence& sequence, const Step& step, std::int64_t i, std::int64_t head) {
  std::vector<std::vector<double>> keys;
  const std::int64_t own = step.first + i;
  for (std::int64_t p = std::max<std::int64_t>(0, own - kReach + 1); p <= own; ++p) {
    keys.emplace_back();
    for (std::int64_t d = 0; d < kDepth; ++d) keys.back().push_back(sequence.window_value(p, d));
  }
  for (std::int64_t c = 0; c < kMost && step.chosen[i * kMost + c] >= 0; ++c) {
    keys.emplace_back();
    for (std::int64_t d = 0; d < kDepth; ++d) {
      keys.back().push_back(sequence.shared_value(step.chosen[i * kMost + c], d));
    }
  }
  const float* const q = step.q.data() + (i * kHeads + head) * kDepth;
  double total = std::exp(static_cast<double>(kSink[head]));
  std::vector<double> out(kDepth);
  for (const std::vector<double>& key : keys) {
    double score = 0;
    for (std::int64_t d = 0; d < kDepth; ++d) score += q[d] * key[d];
    const double weight = std::exp(score / std::sqrt(static_cast<double>(kDepth)));
    total += weight;
    for (std::int64_t d = 0; d < kDepth; ++d) out[d] += weight * key[d];
  }
  for (double& x : out) x /= total;
  return out;
}

}  // namespace

TEST(latent_attention_is_the_plain_formula) {
  const Sequence sequence;
  for_each_isa([&] {
    const Step step = attend(sequence, 0, kLength);
    for (std::int64_t i = 0; i < kLength; ++i) {
      for (std::int64_t h = 0; h < kHeads; ++h) {
        const std::vector<double> want = plain(sequence, step, i, h);
        for (std::int64_t d = 0; d < kDepth; ++d) {
          CHECK(std::fabs(step.out[(i * kHeads + h) * kDepth + d] - want[d]) < 2e-5);
        }
      }
    }
  });
}

TEST(latent_attention_has_the_same_bits_in_every_chunk_and_by_every_number_of_threads) {
  const Sequence sequence;
  for_each_isa([&] {
    const Step whole = attend(sequence, 0, kLength);
    for (const int threads : {1, 3}) {
      set_num_threads(threads);
      for (const std::int64_t size : {1, 7}) {
        for (std::int64_t at = 0; at < kLength; at += size) {
          const Step part = attend(sequence, at, std::min(kLength, at + size));
          const float* const mine = whole.out.data() + at * kHeads * kDepth;
          CHECK_EQ(std::memcmp(mine, part.out.data(), part.out.size() * sizeof(float)), 0);
        }
      }
    }
  });
}

// Keys are the 4-bit codes of the pool, with powers of two behind them; three entries of equal score come by index.
TEST(choice_is_by_score_then_by_index) {
  constexpr std::int64_t keys = 11, heads = 2, depth = 32, count = 4;
  std::vector<std::uint8_t> pool(keys * (depth / 2 + 1));
  const int scores[keys] = {1, 4, 2, 4, 0, 3, 2, 4, 1, 2, 7};  // e2m1 codes of each key's first value: 7 is not seen
  for (std::int64_t n = 0; n < keys; ++n) {
    pool[n * depth / 2] = static_cast<std::uint8_t>(scores[n]), pool[keys * depth / 2 + n] = 128;
  }
  const std::int32_t table[] = {0}, starts[] = {0, 1}, visible[] = {10}, among[] = {0, 2, -1};
  std::vector<float> q(heads * depth), weights = {1.0f, 1.0f};
  q[0] = 1.0f, q[depth] = -1.0f;  // the second head's products are negative: nothing
  const auto size = static_cast<std::int64_t>(pool.size());
  const PagedRecords coded{pool.data(), size, 1, table, 1, 1, 0, keys, depth / 2};
  const PagedRecords scaled{pool.data(), size, 1, table, 1, 1, keys * depth / 2, keys, 1};
  for_each_isa([&] {
    std::vector<std::int32_t> entries(count), blocks(2);
    ChooseArgs args{q.data(), weights.data(), starts, visible, coded, scaled, nullptr, entries.data(), blocks.data(), 1,
                    1,        heads,          depth,  count,   0,     2,      4,       false};
    choose_entries(args);
    CHECK_EQ(entries, (std::vector<std::int32_t>{1, 3, 5, 7}));
    CHECK_EQ(blocks, (std::vector<std::int32_t>{0, 2}));
    args.among = among, args.among_blocks = 3, args.num_blocks = 0;
    choose_entries(args);
    CHECK_EQ(entries, (std::vector<std::int32_t>{1, 2, 3, 9}));
  });
}

TEST(foreign_indices_are_refused) {
  Sequence sequence;
  sequence.table[0] = 100;
  CHECK_THROWS(std::invalid_argument, attend(sequence, 0, 3));
}
