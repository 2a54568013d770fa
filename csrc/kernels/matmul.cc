#include "kernels/matmul.h"

#include <algorithm>

#include "kernels/aligned.h"
#include "kernels/dispatch.h"
#include "kernels/threads.h"

namespace headrace::kernels {
namespace {

constexpr std::int64_t kItemsPerThread = 4;  // enough that a thread that is late costs little
constexpr std::int64_t kMostPanels = 16;     // of one item

// The calling thread's own memory for quantised activations, grown as needed and kept: contents are undefined.
ActivationBlock* activation_scratch(std::int64_t blocks) {
  thread_local AlignedArray<ActivationBlock> memory;
  thread_local std::int64_t size = 0;
  if (size < blocks) {
    memory = aligned_array<ActivationBlock>(static_cast<std::size_t>(blocks));
    size = blocks;
  }
  return memory.get();
}

Stretch row_block(std::int64_t block, std::int64_t tokens) {
  return {block * kRowBlock, std::min(kRowBlock, tokens - block * kRowBlock)};
}

class Product {
 public:
  explicit Product(const LinearArgs& args)
      : args_(args), blocks_((args.tokens + kRowBlock - 1) / kRowBlock), panels_(count_panels()) {}

  void run() {
    if (args_.weight->quantised()) quantise();
    std::int64_t items = 0;
    for (const Segment& segment : args_.weight->segments()) items += blocks_ * parts(segment);
    parallel_for(items, [this](std::int64_t item) { run_item(item); });
  }

 private:
  std::int64_t count_panels() const {
    std::int64_t total = 0;
    for (const Segment& segment : args_.weight->segments()) total += units(segment) * panels_per_unit(segment);
    return total;
  }

  static std::int64_t panels_per_unit(const Segment& segment) {
    return std::holds_alternative<PackedMatrix>(segment.matrix) ? kGroupPanels : 1;
  }
  static std::int64_t units(const Segment& segment) {
    return std::visit([](const auto& m) { return m.num_panels(); }, segment.matrix) / panels_per_unit(segment);
  }

  // Into how many stretches of panels the segment is cut: its share of what all threads want, in even sizes.
  std::int64_t parts(const Segment& segment) const {
    const std::int64_t own = units(segment) * panels_per_unit(segment);
    const std::int64_t wanted = (kItemsPerThread * num_threads() * own + panels_ - 1) / panels_;
    const std::int64_t least = (own + kMostPanels - 1) / kMostPanels;
    return std::min(units(segment), std::max(wanted, least));
  }

  void quantise() {
    const std::int64_t k = args_.weight->k();
    activations_ = activation_scratch(args_.tokens * (k / kGroupValues));
    parallel_for(blocks_, [this, k](std::int64_t block) {
      table().quantise(args_.x, k, row_block(block, args_.tokens), activations_);
    });
  }

  void run_item(std::int64_t item) const {
    for (const Segment& segment : args_.weight->segments()) {
      const std::int64_t count = parts(segment), own = blocks_ * count;
      if (item < own) return run_part(segment, item / count, item % count, count);
      item -= own;
    }
  }

  void run_part(const Segment& segment, std::int64_t block, std::int64_t part, std::int64_t count) const {
    const std::int64_t unit = panels_per_unit(segment), first = units(segment) * part / count;
    const std::int64_t end = units(segment) * (part + 1) / count;
    const Stretch rows = row_block(block, args_.tokens), panels{first * unit, (end - first) * unit};
    const OutputRows out = outputs(segment);
    if (const auto* dense = std::get_if<PackedMatrix>(&segment.matrix)) {
      table().dense_product({args_.x, dense->panels(), out}, rows, panels);
    } else {
      const auto& quantised = std::get<QuantisedMatrix>(segment.matrix);
      table().quantised_product({activations_, quantised.panels(), out}, rows, panels);
    }
  }

  OutputRows outputs(const Segment& segment) const {
    const std::int64_t n = std::visit([](const auto& m) { return m.n(); }, segment.matrix);
    return {args_.bias ? args_.bias + segment.first_row : nullptr, args_.y + segment.first_row, args_.weight->n(), n};
  }

  const LinearArgs& args_;
  const std::int64_t blocks_, panels_;
  ActivationBlock* activations_ = nullptr;
};

}  // namespace

void linear(const LinearArgs& args) { Product(args).run(); }

}  // namespace headrace::kernels
