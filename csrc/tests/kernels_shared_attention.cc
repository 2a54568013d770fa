// Sequences that share their first blocks, attended to in one call: the same bits as each alone, for every format.
#include <cmath>

#include "kernels/attention.h"
#include "kernels/cache.h"
#include "kernels/threads.h"
#include "tests/check.h"
#include "tests/kernels_inputs.h"

using namespace headrace::kernels;
using namespace headrace::testing;

namespace {

constexpr std::int64_t kHeads = 6, kKvHeads = 2, kDepth = 20;

struct Slice {
  std::int64_t rows, length, shared;  // positions in common with the others, of whole blocks
};

// Blocks full of numbers, and slices whose tables begin alike.
struct Crowd {
  KvFormat format;
  std::int64_t block_size, max_blocks = 0, tokens = 0;
  std::vector<std::uint8_t> k, v;
  std::vector<float> q;
  std::vector<std::int32_t> table, starts{0}, lengths;

  Crowd(KvFormat as, std::int64_t block, const std::vector<Slice>& slices) : format(as), block_size(block) {
    std::int32_t blocks = 1;
    for (const Slice& slice : slices) max_blocks = std::max(max_blocks, (slice.length + block - 1) / block);
    for (const Slice& slice : slices) {
      for (std::int64_t b = 0; b < max_blocks; ++b) {
        const bool shared = b * block < slice.shared;
        table.push_back(shared ? static_cast<std::int32_t>(max_blocks * 20 - b) : blocks++);
      }
      tokens += slice.rows;
      starts.push_back(static_cast<std::int32_t>(tokens));
      lengths.push_back(static_cast<std::int32_t>(slice.length));
    }
    fill(max_blocks * 20 + 1);
    q = numbers(tokens * kHeads * kDepth, 7);
  }

  void fill(std::int64_t blocks) {
    const std::int64_t rows = blocks * block_size;
    k.assign(static_cast<std::size_t>(rows * kKvHeads * row_bytes(format, kDepth)), 0), v = k;
    std::vector<std::int32_t> slots;
    for (std::int64_t p = 0; p < rows; ++p) slots.push_back(static_cast<std::int32_t>(p));
    const auto keys = numbers(rows * kKvHeads * kDepth, 8), values = numbers(rows * kKvHeads * kDepth, 9);
    write_kv({keys.data(), values.data(), cache(k), cache(v), slots.data(), rows, kKvHeads, block_size, kDepth});
  }

  KvCache cache(std::vector<std::uint8_t>& rows) {
    return {rows.data(), format, kKvHeads * block_size * row_bytes(format, kDepth)};
  }

  // Slices [first, end) in one call.
  std::vector<float> attend(std::int64_t first, std::int64_t end) {
    const std::int64_t begin = starts[first], count = starts[end] - begin;
    std::vector<std::int32_t> start;
    for (std::int64_t s = first; s <= end; ++s) start.push_back(static_cast<std::int32_t>(starts[s] - begin));
    std::vector<float> out(count * kHeads * kDepth);
    paged_attention({q.data() + begin * kHeads * kDepth, cache(k), cache(v), table.data() + first * max_blocks,
                     start.data(), lengths.data() + first, out.data(), count, end - first, max_blocks, kHeads, kKvHeads,
                     block_size, kDepth, 0.3f, 0});
    return out;
  }
};

void check_crowd(KvFormat format, std::int64_t block_size, const std::vector<Slice>& slices) {
  Crowd crowd(format, block_size, slices);
  std::vector<float> alone;
  for (std::size_t s = 0; s < slices.size(); ++s) {
    const auto one = crowd.attend(static_cast<std::int64_t>(s), static_cast<std::int64_t>(s) + 1);
    alone.insert(alone.end(), one.begin(), one.end());
  }
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    CHECK_EQ(crowd.attend(0, static_cast<std::int64_t>(slices.size())), alone);
  }
}

const std::vector<KvFormat> kFormats{KvFormat::kFloat32, KvFormat::kBfloat16, KvFormat::kInt16, KvFormat::kInt8};

}  // namespace

TEST(rows_behind_a_shared_beginning_have_the_bits_they_have_alone) {
  for_each_isa([] {
    for (const KvFormat format : kFormats) {
      check_crowd(format, 16, {{1, 1100, 1040}, {1, 1041, 1040}, {3, 1300, 1040}, {1, 1043, 1040}});
      check_crowd(format, 48, {{1, 1100, 1056}, {2, 1060, 1056}, {1, 700, 672}});
    }
  });
}

TEST(only_whole_partitions_that_all_rows_see_in_the_same_blocks_are_shared) {
  for_each_isa([] {
    const KvFormat format = KvFormat::kInt16;
    check_crowd(format, 16, {{1, 512, 512}, {1, 513, 512}, {4, 514, 512}, {1, 516, 512}});  // some rows see less
    check_crowd(format, 16, {{1, 600, 512}, {1, 600, 0}, {1, 600, 512}, {1, 620, 512}});    // a stranger between
    check_crowd(format, 16, {{1, 1100, 1088}, {1, 1100, 528}, {40, 1100, 1040}, {1, 90, 80}});
  });
}

TEST(many_rows_share_in_groups) {
  for_each_isa([] {
    std::vector<Slice> slices;
    for (std::int64_t i = 0; i < 19; ++i) slices.push_back({1 + i % 5, 530 + i, 512});
    check_crowd(KvFormat::kInt16, 16, slices);
    check_crowd(KvFormat::kFloat32, 16, slices);
  });
}
