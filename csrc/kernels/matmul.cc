#include "kernels/matmul.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/aligned.h"
#include "kernels/dispatch.h"
#include "kernels/threads.h"

namespace headrace::kernels {
namespace {

constexpr std::int64_t kItemsPerThread = 4;  // enough that a thread that is late costs little
constexpr std::int64_t kMostPanels = 16;     // of one item
constexpr std::int64_t kWorthwhile = 4096;   // values of rows to make for which waking a thread pays

// The calling thread's own memory, one for each use, grown as needed and kept: contents are undefined.
enum class Use { kActivations, kRows, kRow, kOutputs, kTops };
template <typename T, Use use>
T* scratch(std::int64_t count) {
  thread_local AlignedArray<T> memory;
  thread_local std::int64_t size = 0;
  if (size < count) {
    memory = aligned_array<T>(static_cast<std::size_t>(count));
    size = count;
  }
  return memory.get();
}

Stretch row_block(std::int64_t block, std::int64_t tokens) {
  return {block * kRowBlock, std::min(kRowBlock, tokens - block * kRowBlock)};
}

// One stretch of a segment's panels times one block of rows.
struct Part {
  const Segment& segment;
  std::int64_t number;  // among all parts of a block, in the order of their outputs
  Stretch rows, panels;
};

class Product {
 public:
  explicit Product(const LinearArgs& args)
      : args_(args), blocks_((args.tokens + kRowBlock - 1) / kRowBlock), panels_(count_panels()) {
    for (const Segment& segment : args_.weight->segments()) parts_ += parts(segment);
  }

  void run() {
    make_rows();
    if (args_.best) tops_ = scratch<RowTop, Use::kTops>(args_.tokens * parts_);
    parallel_for(blocks_ * parts_, [this](std::int64_t item) { run_item(item); });
    if (args_.best) choose_best();
  }

 private:
  std::int64_t count_panels() const {
    std::int64_t total = 0;
    for (const Segment& segment : args_.weight->segments()) total += units(segment) * panels_per_unit(segment);
    return total;
  }

  static bool dense(const Segment& segment) { return std::holds_alternative<PackedMatrix>(segment.matrix); }
  static std::int64_t panels_per_unit(const Segment& segment) { return dense(segment) ? kGroupPanels : 1; }
  static std::int64_t units(const Segment& segment) {
    return std::visit([](const auto& m) { return m.num_panels(); }, segment.matrix) / panels_per_unit(segment);
  }

  // Into how many stretches of panels the segment is cut: its share of what all threads want, in even sizes.
  std::int64_t parts(const Segment& segment) const {
    const std::int64_t own = units(segment) * panels_per_unit(segment);
    const std::int64_t wanted = (kItemsPerThread * threads_ * own + panels_ - 1) / panels_;
    const std::int64_t least = (own + kMostPanels - 1) / kMostPanels;
    return std::min(units(segment), std::max(wanted, least));
  }

  // Rows as floats where some segment is dense, and quantised where some is not.
  void make_rows() {
    const auto& segments = args_.weight->segments();
    InputRows in = args_.in;
    if (in.made != Made::kAsIs && std::any_of(segments.begin(), segments.end(), dense)) {
      float* const rows = scratch<float, Use::kRows>(args_.tokens * in.k);
      for_parts_of_blocks([&](std::int64_t block, std::int64_t part, std::int64_t parts) {
        const Stretch all = row_block(block, args_.tokens);
        const std::int64_t first = all.count * part / parts, end = all.count * (part + 1) / parts;
        table_.make_rows(in, {all.first + first, end - first}, rows);
      });
      in = {rows, in.k};
    }
    rows_ = in.x;
    if (args_.weight->quantised()) quantise(in);
  }

  void quantise(const InputRows& in) {
    activations_ = scratch<ActivationBlock, Use::kActivations>(args_.tokens * (in.k / kGroupValues));
    for_parts_of_blocks([&](std::int64_t block, std::int64_t part, std::int64_t parts) {
      float* const space = scratch<float, Use::kRow>(in.k);
      table_.quantise_rows(in, row_block(block, args_.tokens), part, parts, space, activations_);
    });
  }

  // Calls body(block, part, parts) so that several threads share a block when there is enough to do.
  template <typename Body>
  void for_parts_of_blocks(const Body& body) const {
    const std::int64_t values = std::min(kRowBlock, args_.tokens) * args_.in.x_width();
    const std::int64_t wanted = std::min<std::int64_t>(values / kWorthwhile, kItemsPerThread * threads_);
    const std::int64_t parts = blocks_ > 0 ? std::max<std::int64_t>(1, wanted / blocks_) : 1;
    parallel_for(blocks_ * parts, [&](std::int64_t item) { body(item / parts, item % parts, parts); });
  }

  void run_item(std::int64_t item) const {
    std::int64_t before = 0;
    for (const Segment& segment : args_.weight->segments()) {
      const std::int64_t count = parts(segment), own = blocks_ * count;
      if (item < own) return run_part(cut(segment, item % blocks_, item / blocks_, count, before));
      item -= own, before += count;
    }
  }

  Part cut(const Segment& segment, std::int64_t block, std::int64_t part, std::int64_t count,
           std::int64_t before) const {
    const std::int64_t unit = panels_per_unit(segment), first = units(segment) * part / count;
    const std::int64_t end = units(segment) * (part + 1) / count;
    return {segment, before + part, row_block(block, args_.tokens), {first * unit, (end - first) * unit}};
  }

  void run_part(const Part& part) const {
    if (!args_.best) return multiply(part, outputs(part.segment));
    const std::int64_t width = part.panels.count * kPanel, first = part.panels.first * kPanel;
    OutputRows out = outputs(part.segment);
    out.y = scratch<float, Use::kOutputs>(part.rows.count * width);
    out.stride = width, out.row = part.rows.first, out.column = first;
    multiply(part, out);
    for (std::int64_t m = 0; m < part.rows.count; ++m) {
      RowTop top = table_.row_top(out.y + m * width, std::min(width, out.width - first));
      if (top.id >= 0) top.id += static_cast<std::int32_t>(part.segment.first_row + first);
      tops_[(part.rows.first + m) * parts_ + part.number] = top;
    }
  }

  void multiply(const Part& part, const OutputRows& out) const {
    if (const auto* matrix = std::get_if<PackedMatrix>(&part.segment.matrix)) {
      table_.dense_product({rows_, matrix->panels(), out}, part.rows, part.panels);
    } else {
      const auto& quantised = std::get<QuantisedMatrix>(part.segment.matrix);
      table_.quantised_product({activations_, quantised.panels(), out}, part.rows, part.panels);
    }
  }

  OutputRows outputs(const Segment& segment) const {
    const std::int64_t n = std::visit([](const auto& m) { return m.n(); }, segment.matrix);
    const float* const bias = args_.bias ? args_.bias + segment.first_row : nullptr;
    return {bias, args_.y ? args_.y + segment.first_row : nullptr, args_.weight->n(), n};
  }

  // Of each row the best of its parts' tops, in rising order: a tie leaves the lower id, a NaN spoils the row.
  void choose_best() const {
    for (std::int64_t row = 0; row < args_.tokens; ++row) {
      RowTop best{-std::numeric_limits<float>::infinity(), -1};
      for (std::int64_t i = 0; i < parts_; ++i) {
        const RowTop& top = tops_[row * parts_ + i];
        if (std::isnan(top.value) || top.value > best.value) best = top;
        if (std::isnan(best.value)) break;
      }
      args_.best[row] = std::isfinite(best.value) ? best.id : -1;
    }
  }

  const LinearArgs& args_;
  // What was so at the beginning: others may set either in the middle, and outputs are cut by them again and again.
  const Table& table_ = table();
  const std::int64_t threads_ = num_threads();
  const std::int64_t blocks_, panels_;
  std::int64_t parts_ = 0;  // of one block of rows, over all segments
  const float* rows_ = nullptr;
  ActivationBlock* activations_ = nullptr;
  RowTop* tops_ = nullptr;
};

}  // namespace

void linear(const LinearArgs& args) { Product(args).run(); }

}  // namespace headrace::kernels
