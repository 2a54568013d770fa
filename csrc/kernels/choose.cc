// Which compressed entries each row reads: scores of the keys it sees, then its best, the higher score first and of
// equal ones the lower index. Scores are made a band of rows at a time, so that memory has a bound.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "kernels/aligned.h"
#include "kernels/checks.h"
#include "kernels/dispatch.h"
#include "kernels/records.h"
#include "kernels/threads.h"

namespace headrace::kernels {
namespace {

constexpr std::int64_t kTileRows = 16;         // rows that share the unpacking of keys
constexpr std::int64_t kBandFloats = 4 << 20;  // scores in memory at once, about
constexpr std::uint32_t kHighest = std::numeric_limits<std::uint32_t>::max();

// Rows of one slice and where their scores lie: row i's from `at + i * stride` on.
struct RowTile {
  std::int64_t slice, row, rows, keys, stride, at;
};

struct Band {
  std::vector<RowTile> tiles;
  std::int64_t floats = 0;
};

float to_bfloat16(float x) {
  if (std::isnan(x)) return x;
  std::uint32_t raw;
  std::memcpy(&raw, &x, sizeof raw);
  raw = (raw + 0x7FFF + (raw >> 16 & 1)) & 0xFFFF0000;
  std::memcpy(&x, &raw, sizeof raw);
  return x;
}

// Numbers that compare as the scores do; NaN is above all, both zeros are one.
std::uint32_t rank_of(float score) {
  if (std::isnan(score)) return kHighest;
  const float x = score + 0.0f;
  std::uint32_t raw;
  std::memcpy(&raw, &x, sizeof raw);
  return raw >> 31 ? ~raw : raw | 0x80000000u;
}

// What a thread keeps from row to row.
struct Choosing {
  std::vector<std::uint32_t> ranks, copy;
  std::vector<std::int32_t> numbers;

  void add(std::int64_t number, std::uint32_t rank) {
    numbers.push_back(static_cast<std::int32_t>(number)), ranks.push_back(rank);
  }
  void clear() { numbers.clear(), ranks.clear(); }

  // The `count` best, ascending, -1 behind them; numbers were added in ascending order.
  void best(std::int64_t count, std::int32_t* out) {
    const auto most = static_cast<std::size_t>(count);
    std::uint32_t limit = 0;
    std::size_t equal = most;  // how many of exactly the limit's rank
    if (ranks.size() > most) {
      copy = ranks;
      std::nth_element(copy.begin(), copy.begin() + (count - 1), copy.end(), std::greater<>());
      limit = copy[most - 1];
      equal -= static_cast<std::size_t>(
          std::count_if(ranks.begin(), ranks.end(), [limit](std::uint32_t r) { return r > limit; }));
    }
    std::size_t filled = 0;
    for (std::size_t i = 0; i < ranks.size() && filled < most; ++i) {
      const bool taken = ranks[i] > limit || (ranks[i] == limit && equal > 0);
      if (taken && ranks[i] == limit) --equal;
      if (taken) out[filled++] = numbers[i];
    }
    std::fill(out + filled, out + most, -1);
  }
};

void choose_row(const ChooseArgs& args, std::int64_t row, const float* scores, Choosing& choosing) {
  const std::int64_t visible = args.visible[row], size = args.block_size;
  const auto rank = [&](std::int64_t n) { return rank_of(args.rounded ? to_bfloat16(scores[n]) : scores[n]); };
  choosing.clear();
  if (args.among == nullptr) {
    for (std::int64_t n = 0; n < visible; ++n) choosing.add(n, rank(n));
  } else {
    const std::int32_t* const mine = args.among + row * args.among_blocks;
    for (std::int64_t b = 0; b < args.among_blocks && mine[b] >= 0; ++b) {
      const std::int64_t end = std::min(visible, (mine[b] + 1) * size);
      for (std::int64_t n = mine[b] * size; n < end; ++n) choosing.add(n, rank(n));
    }
  }
  choosing.best(args.count, args.entries + row * args.count);
  if (args.num_blocks == 0) return;
  // Blocks by their best entry; the last one that the row sees is always in.
  const std::int64_t seen = (visible + size - 1) / size;
  choosing.clear();
  for (std::int64_t b = 0; b < seen; ++b) {
    std::uint32_t highest = b == seen - 1 ? kHighest : 0;
    for (std::int64_t n = b * size; n < std::min(visible, (b + 1) * size); ++n) highest = std::max(highest, rank(n));
    choosing.add(b, highest);
  }
  choosing.best(args.num_blocks, args.blocks + row * args.num_blocks);
}

class Steps {
 public:
  explicit Steps(const ChooseArgs& args) : args_(args) {
    for (std::int64_t s = 0; s < args.slices; ++s) {
      for (std::int64_t t = args.query_start[s]; t < args.query_start[s + 1]; t += kTileRows) {
        add(s, t, std::min(kTileRows, args.query_start[s + 1] - t));
      }
    }
  }

  void run() const {
    AlignedArray<float> scores = aligned_array<float>(static_cast<std::size_t>(largest_));
    for (const Band& band : bands_) {
      score(band, scores.get());
      choose(band, scores.get());
    }
  }

 private:
  void add(std::int64_t slice, std::int64_t row, std::int64_t rows) {
    const std::int64_t keys = *std::max_element(args_.visible + row, args_.visible + row + rows);
    const std::int64_t stride = (keys + 15) / 16 * 16;
    if (bands_.empty() || bands_.back().floats + rows * stride > kBandFloats) bands_.emplace_back();
    Band& band = bands_.back();
    band.tiles.push_back({slice, row, rows, keys, stride, band.floats});
    band.floats += rows * stride;
    largest_ = std::max(largest_, band.floats);
  }

  void score(const Band& band, float* scores) const {
    std::vector<ScoreTile> items;
    for (const RowTile& t : band.tiles) {
      for (std::int64_t first = 0; first < t.keys; first += kScoreKeys) {
        const std::int64_t end = std::min(t.keys, first + kScoreKeys);
        items.push_back({t.slice, t.row, t.rows, first, end, scores + t.at + first, t.stride});
      }
    }
    const auto floats = static_cast<std::size_t>(score_scratch_floats(args_.heads, args_.depth));
    parallel_for(static_cast<std::int64_t>(items.size()), [&](std::int64_t i) {
      thread_local AlignedArray<float> scratch;
      thread_local std::size_t size = 0;
      if (size < floats) {
        scratch = aligned_array<float>(floats);
        size = floats;
      }
      table().score_keys(args_, items[static_cast<std::size_t>(i)], scratch.get());
    });
  }

  void choose(const Band& band, const float* scores) const {
    parallel_for(static_cast<std::int64_t>(band.tiles.size()), [&](std::int64_t i) {
      thread_local Choosing choosing;
      const RowTile& t = band.tiles[static_cast<std::size_t>(i)];
      for (std::int64_t r = 0; r < t.rows; ++r) choose_row(args_, t.row + r, scores + t.at + r * t.stride, choosing);
    });
  }

  const ChooseArgs& args_;
  std::vector<Band> bands_;
  std::int64_t largest_ = 0;
};

void check_keys(const PagedRecords& records, std::int64_t slice, std::int64_t keys, const char* name) {
  require(keys <= records.max_blocks * records.rows, std::string(name) + ": the table covers fewer keys than are seen");
  const std::int64_t blocks = (keys + records.rows - 1) / records.rows;
  require_range(records.table + slice * records.max_blocks, blocks, 0, records.num_blocks, name);
}

void check(const ChooseArgs& args) {
  require_offsets(args.query_start, args.slices, args.tokens, "query_start_loc");
  require(args.query_start[args.slices] == args.tokens, "query_start_loc: must end with the last row");
  require_range(args.visible, args.tokens, 0, std::numeric_limits<std::int32_t>::max(), "visible");
  for (std::int64_t s = 0; s < args.slices; ++s) {
    const std::int32_t *const begin = args.visible + args.query_start[s], *end = args.visible + args.query_start[s + 1];
    if (begin == end) continue;
    const std::int64_t keys = *std::max_element(begin, end);
    check_keys(args.codes, s, keys, "codes");
    check_keys(args.scales, s, keys, "scales");
  }
  if (args.among == nullptr) return;
  for (std::int64_t i = 0; i < args.tokens * args.among_blocks; ++i) {
    const bool first = i % args.among_blocks == 0, none = args.among[i] == -1;
    require(none || (args.among[i] >= 0 && (first || args.among[i] > args.among[i - 1])),
            "among: a row must ascend, with -1 behind it");
    require(none || first || args.among[i - 1] != -1, "among: a row must ascend, with -1 behind it");
  }
}

}  // namespace

void choose_entries(const ChooseArgs& args) {
  check(args);
  if (args.tokens > 0) Steps(args).run();
}

}  // namespace headrace::kernels
