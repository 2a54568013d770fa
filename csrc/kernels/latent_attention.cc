// Attention to a window and to chosen rows of a shared cache, read where they lie. Rows of a slice are taken a few at a
// time, so that they share the unpacking of their keys; the arithmetic, row by row, is in generic/latent_attention.h.
#include <algorithm>
#include <vector>

#include "kernels/aligned.h"
#include "kernels/checks.h"
#include "kernels/dispatch.h"
#include "kernels/records.h"
#include "kernels/threads.h"

namespace headrace::kernels {
namespace {

constexpr std::int64_t kMostRows = 32;                // of an item
constexpr std::int64_t kUnpackedFloats = 384 * 1024;  // of an item's keys, about: they should stay near the processor

struct Item {
  std::int64_t slice, row, rows, position;  // of its first row
};

// What one thread keeps from item to item; contents are undefined in between.
struct Scratch {
  AlignedArray<float> keys, weights;
  std::int64_t key_floats = 0, weight_floats = 0;
  std::vector<std::int32_t> chosen;  // entries that some row of the item reads, ascending
  std::vector<const float*> of_row;

  float* room_for_keys(std::int64_t floats) { return room(keys, key_floats, floats); }
  float* room_for_weights(std::int64_t floats) { return room(weights, weight_floats, floats); }

 private:
  static float* room(AlignedArray<float>& array, std::int64_t& size, std::int64_t floats) {
    if (size < floats) {
      array = aligned_array<float>(static_cast<std::size_t>(floats));  // may throw: the size is true only then
      size = floats;
    }
    return array.get();
  }
};

std::vector<Item> cut_into_items(const LatentAttentionArgs& args) {
  const std::int64_t fitting = (kUnpackedFloats / args.depth - args.reach) / (args.most + 1);
  const std::int64_t share = args.tokens / (4 * num_threads()) + 1;
  const std::int64_t rows = std::clamp<std::int64_t>(std::min(fitting, share), 1, kMostRows);
  std::vector<Item> items;
  for (std::int64_t s = 0; s < args.slices; ++s) {
    const std::int64_t begin = args.query_start[s], end = args.query_start[s + 1];
    const std::int64_t before = args.seq_lens[s] - (end - begin);
    for (std::int64_t t = begin; t < end; t += rows) {
      items.push_back({s, t, std::min(rows, end - t), before + (t - begin)});
    }
  }
  return items;
}

// First position that a row at `position` sees.
std::int64_t first_seen(const LatentAttentionArgs& args, std::int64_t slice, std::int64_t position) {
  return std::max<std::int64_t>({0, args.floors[slice], position - args.reach + 1});
}

// The entries that rows of an item chose, once each.
void collect_chosen(const LatentAttentionArgs& args, const Item& item, std::vector<std::int32_t>& into) {
  into.clear();
  for (std::int64_t t = item.row; t < item.row + item.rows; ++t) {
    const std::int32_t* const mine = args.chosen + t * args.most;
    for (std::int64_t i = 0; i < args.most && mine[i] >= 0; ++i) into.push_back(mine[i]);
  }
  if (item.rows == 1) return;
  std::sort(into.begin(), into.end());
  into.erase(std::unique(into.begin(), into.end()), into.end());
}

class Attending {
 public:
  Attending(const LatentAttentionArgs& args, const Item& item, Scratch& scratch)
      : args_(args), item_(item), scratch_(scratch), low_(first_seen(args, item.slice, item.position)) {
    collect_chosen(args, item, scratch.chosen);
    const std::int64_t end = item.position + item.rows, held = std::max<std::int64_t>(0, end - low_);
    const auto shared = static_cast<std::int64_t>(scratch.chosen.size());
    window_ = scratch.room_for_keys((held + shared) * args.depth);
    shared_ = window_ + held * args.depth;
    for (std::int64_t i = 0; i < held; ++i) {
      const std::uint8_t* const record = args.window.at(item.slice, low_ + i);
      table().unpack_record(RecordFormat::kMxfp8, record, args.depth, window_ + i * args.depth);
    }
    for (std::int64_t i = 0; i < shared; ++i) {
      const std::uint8_t* const record = args.shared.at(item.slice, scratch.chosen[static_cast<std::size_t>(i)]);
      table().unpack_record(args.shared_format, record, args.depth, shared_ + i * args.depth);
    }
  }

  void run() const {
    for (std::int64_t i = 0; i < item_.rows; ++i) {
      list_keys(item_.row + i, item_.position + i);
      const std::int64_t row = (item_.row + i) * args_.heads * args_.depth;
      const auto count = static_cast<std::int64_t>(scratch_.of_row.size());
      float* const weights = scratch_.room_for_weights(args_.heads * (count + 16));
      table().attend_latent({args_.q + row, scratch_.of_row.data(), count, args_.heads, args_.depth, args_.sink,
                             weights, args_.out + row});
    }
  }

 private:
  // A row's keys in order: the window's by position, then the chosen ones.
  void list_keys(std::int64_t row, std::int64_t position) const {
    std::vector<const float*>& keys = scratch_.of_row;
    keys.clear();
    for (std::int64_t p = first_seen(args_, item_.slice, position); p <= position; ++p) {
      keys.push_back(window_ + (p - low_) * args_.depth);
    }
    const std::int32_t* const mine = args_.chosen + row * args_.most;
    std::size_t at = 0;
    for (std::int64_t i = 0; i < args_.most && mine[i] >= 0; ++i) {
      while (scratch_.chosen[at] != mine[i]) ++at;
      keys.push_back(shared_ + static_cast<std::int64_t>(at) * args_.depth);
    }
  }

  const LatentAttentionArgs& args_;
  const Item& item_;
  Scratch& scratch_;
  const std::int64_t low_;
  float* window_ = nullptr;
  float* shared_ = nullptr;
};

// Block ids of the rows [first, end) of a slice.
void check_blocks(const PagedRecords& records, std::int64_t slice, std::int64_t first, std::int64_t end,
                  const char* name) {
  require(end <= records.max_blocks * records.rows, std::string(name) + ": the table covers fewer rows than are read");
  if (first >= end) return;
  const std::int64_t low = first / records.rows, high = (end - 1) / records.rows + 1;
  require_range(records.table + slice * records.max_blocks + low, high - low, 0, records.num_blocks, name);
}

void check_row(const LatentAttentionArgs& args, std::int64_t slice, std::int64_t row) {
  const std::int32_t* const mine = args.chosen + row * args.most;
  for (std::int64_t i = 0; i < args.most && mine[i] != -1; ++i) {
    require(mine[i] >= 0 && (i == 0 || mine[i] > mine[i - 1]), "chosen: a row must ascend, with -1 behind it");
    check_blocks(args.shared, slice, mine[i], mine[i] + 1, "chosen");
  }
}

void check(const LatentAttentionArgs& args) {
  require_offsets(args.query_start, args.slices, args.tokens, "query_start_loc");
  require(args.query_start[args.slices] == args.tokens, "query_start_loc: must end with the last row");
  for (std::int64_t s = 0; s < args.slices; ++s) {
    const std::int64_t begin = args.query_start[s], end = args.query_start[s + 1];
    const std::int64_t first = args.seq_lens[s] - (end - begin);
    require(first >= 0, "seq_lens: less than the slice's rows");
    if (begin < end) check_blocks(args.window, s, first_seen(args, s, first), args.seq_lens[s], "window");
    for (std::int64_t t = begin; t < end; ++t) check_row(args, s, t);
  }
}

}  // namespace

void latent_attention(const LatentAttentionArgs& args) {
  check(args);
  const std::vector<Item> items = cut_into_items(args);
  parallel_for(
      static_cast<std::int64_t>(items.size()),
      [&](std::int64_t i) {
        thread_local Scratch scratch;
        Attending(args, items[static_cast<std::size_t>(i)], scratch).run();
      },
      Deal::kInTurn);
}

}  // namespace headrace::kernels
