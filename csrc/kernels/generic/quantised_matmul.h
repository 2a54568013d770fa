// y = x @ weight.T + bias with int8 activations and panels of 4- or 8-bit codes (see quantise.h and quantised.h).
//
// For output n of row t, over the groups g of 32 in rising order (of 16 where the weight has a scale for every 16):
//   dot = sum over the group of (code - offset) * activation code, an exact integer;
//   y = fused(float(dot), weight scale[n, g] * activation scale[t, g], y);
//   y = fused(weight minimum[n, g], activation scale[t, g] * sum of its codes, y)   unless symmetric.
// That chain is the promise: no tile, thread count or instruction set changes it, so all give the same bits.
#pragma once

#include "kernels/generic/matmul.h"
#include "kernels/generic/quantise.h"

namespace headrace::kernels::HEADRACE_ISA {

// Codes are asked for this many bytes before they are needed. What the hardware fetches by itself comes too late: this
// is what keeps a step of up to some twenty rows bound by memory.
inline constexpr std::int64_t kAhead = 4096;

// What a tile asks for while it multiplies: the codes that are wanted `code_bytes` of codes later, in the order in
// which panels are read, and the scales and minima `panels` panels further (they lie behind a panel's codes, but are
// needed from its first group on). Nothing behind `end`, the weight's last group: a thread goes on with the next item
// of its stretch.
struct Fetch {
  const std::uint8_t* end;
  std::int64_t code_bytes, panels;
};

// Where those codes are, group by group; where a panel's codes end they go on in the next panel.
class CodesAhead {
 public:
  CodesAhead(const QuantisedPanels& panels, const std::uint8_t* panel, const Fetch& fetch)
      : region_(panels.scales_at), gap_(panels.panel_bytes - panels.scales_at), end_(fetch.end) {
    const std::int64_t whole = fetch.code_bytes / region_, rest = fetch.code_bytes % region_;
    at_ = panel + whole * panels.panel_bytes + rest;
    left_ = region_ - rest;
  }

  // The next group's; `otherwise` where there are none.
  template <int group_bytes>
  const std::uint8_t* next(const std::uint8_t* otherwise) {
    const std::uint8_t* const found = at_ < end_ ? at_ : otherwise;
    at_ += group_bytes, left_ -= group_bytes;
    if (left_ == 0) at_ += gap_, left_ = region_;
    return found;
  }

 private:
  std::int64_t region_, gap_, left_;
  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

// A PanelForm at compile time.
template <int Bits, int ScaleValues, bool Symmetric, bool HalfScales>
struct Form {
  static constexpr int kScaleValues = ScaleValues;
  static constexpr bool kSymmetric = Symmetric;
  static constexpr int kGroupBytes = kGroupValues * kPanel * Bits / 8;
  static constexpr int kScaleBytes = kGroupValues / ScaleValues * kPanel * (HalfScales ? 2 : 4);  // per group
  static constexpr int kOffsetShift = Bits == 4 ? 3 : 7;  // log2 of the offset of symmetric codes
  static constexpr PanelForm form{Bits, ScaleValues, Symmetric, HalfScales};

  // Quad number `quad` of the group whose codes begin at `codes`, one byte per code.
  template <int quad>
  static Bytes codes_of(const std::uint8_t* codes) {
    if constexpr (Bits == 8) return load_bytes(codes + quad * 64);
    if constexpr (Bits == 4 && quad < 4) return low_nibbles(load_bytes(codes + quad * 64));
    if constexpr (Bits == 4 && quad >= 4) return high_nibbles(load_bytes(codes + (quad - 4) * 64));
  }

  static Vec number(const std::uint8_t* region, std::int64_t index) {
    if constexpr (HalfScales) return load_half(region + index * kPanel * 2);
    return load(reinterpret_cast<const float*>(region + index * kPanel * 4));
  }
};

// Calls body with the Form that equals `form`. These are all that block_formats.cc makes.
template <typename Body>
inline void with_form(const PanelForm& form, const Body& body) {
  const auto is = [&](auto f) {
    return form.code_bits == f.form.code_bits && form.scale_values == f.form.scale_values &&
           form.symmetric == f.form.symmetric && form.half_scales == f.form.half_scales;
  };
  if (is(Form<4, 32, true, true>{})) return body(Form<4, 32, true, true>{});
  if (is(Form<4, 32, false, true>{})) return body(Form<4, 32, false, true>{});
  if (is(Form<4, 32, false, false>{})) return body(Form<4, 32, false, false>{});
  if (is(Form<8, 32, true, true>{})) return body(Form<8, 32, true, true>{});
  if (is(Form<8, 32, false, true>{})) return body(Form<8, 32, false, true>{});
  if (is(Form<8, 32, false, false>{})) return body(Form<8, 32, false, false>{});
  if (is(Form<8, 16, true, false>{})) return body(Form<8, 16, true, false>{});
  __builtin_trap();
}

// M rows of activations by P panels. `acc` goes through all groups; the integer sums live for one group (or half).
template <typename F, int M, int P>
struct QuantisedTile {
  Vec acc[M][P];
  IntVec dot[M][P];

  [[gnu::always_inline]] void clear() {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) acc[m][p] = zero();
    }
  }

  // Sums start at minus the offset times the sum of the activations' codes: then they come out as if codes were signed.
  template <int half>
  [[gnu::always_inline]] void start(const ActivationBlock* x) {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      IntVec first = set1_int(0);
      if constexpr (F::kSymmetric) {
        const std::int32_t part = F::kScaleValues == 32 ? x[m].minus_sum
                                  : half == 0           ? x[m].minus_first
                                                        : x[m].minus_sum - x[m].minus_first;
        first = shift_left<F::kOffsetShift>(set1_int(static_cast<std::uint32_t>(part)));
      }
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) dot[m][p] = first;
    }
  }

  // Quads [quad, end) of the group, fetching as much elsewhere.
  template <int quad, int end>
  [[gnu::always_inline]] void add_quads(const std::uint8_t* codes, std::int64_t stride, const ActivationBlock* x,
                                        const std::uint8_t* ahead) {
    Bytes w[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) w[p] = F::template codes_of<quad>(codes + p * stride);
    if constexpr (P == 1 && quad < F::kGroupBytes / 64) __builtin_prefetch(ahead + quad * 64);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) dot[m][p] = add_dots(dot[m][p], w[p], x[m].codes + 4 * quad);
    }
    if constexpr (quad + 1 < end) add_quads<quad + 1, end>(codes, stride, x, ahead);
  }

  // The group's codes of all panels at once: between so many products it matters little where they are asked for.
  [[gnu::always_inline]] void fetch_group(const std::uint8_t* ahead, std::int64_t stride) {
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 8
      for (int line = 0; line < F::kGroupBytes; line += 64) __builtin_prefetch(ahead + p * stride + line);
    }
  }

  [[gnu::always_inline]] void fetch_numbers(const std::uint8_t* scales, const std::uint8_t* minima, std::int64_t stride,
                                            std::int64_t group) {
    for (int p = 0; p < P; ++p) {
      __builtin_prefetch(scales + p * stride + group * F::kScaleBytes);
      if constexpr (!F::kSymmetric) __builtin_prefetch(minima + p * stride + group * F::kScaleBytes);
    }
  }

  [[gnu::always_inline]] void finish(const std::uint8_t* scales, std::int64_t stride, std::int64_t number,
                                     const ActivationBlock* x) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const Vec scale = F::number(scales + p * stride, number);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        acc[m][p] = fused(to_float_signed(dot[m][p]), mul(scale, set1(x[m].scale)), acc[m][p]);
      }
    }
  }

  [[gnu::always_inline]] void add_minimum(const std::uint8_t* minima, std::int64_t stride, std::int64_t number,
                                          const ActivationBlock* x) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const Vec minimum = F::number(minima + p * stride, number);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) acc[m][p] = fused(minimum, set1(x[m].scaled_sum), acc[m][p]);
    }
  }

  [[gnu::always_inline]] void multiply(const QuantisedPanels& panels, const std::uint8_t* panel,
                                       const ActivationBlock* x, Fetch fetch) {
    const std::uint8_t* const scales = panel + panels.scales_at;
    const std::uint8_t* const minima = panel + panels.minima_at;
    const std::int64_t stride = panels.panel_bytes;
    const std::uint8_t* codes = panel;
    CodesAhead codes_ahead(panels, panel, fetch);
    const std::int64_t further = panel + fetch.panels * stride < fetch.end ? fetch.panels * stride : 0;
    for (std::int64_t g = 0; g < panels.k / kGroupValues; ++g, codes += F::kGroupBytes, x += M) {
      const std::uint8_t* const ahead = codes_ahead.next<F::kGroupBytes>(codes);
      if (P > 1 && fetch.code_bytes > 0) fetch_group(ahead, stride);
      if (further > 0) fetch_numbers(scales + further, minima + further, stride, g);
      start<0>(x);
      if constexpr (F::kScaleValues == 32) {
        add_quads<0, 8>(codes, stride, x, ahead);
        finish(scales, stride, g, x);
      } else {
        add_quads<0, 4>(codes, stride, x, ahead);
        finish(scales, stride, 2 * g, x);
        start<1>(x);
        add_quads<4, 8>(codes, stride, x, ahead);
        finish(scales, stride, 2 * g + 1, x);
      }
      if constexpr (!F::kSymmetric) add_minimum(minima, stride, g, x);
    }
  }
};

// Rows times P panels, which stay in the first cache while the rows pass by.
template <typename F, int P>
inline void quantised_rows(const QuantisedArgs& args, Stretch rows, std::int64_t panel, const std::uint8_t* end) {
  const std::int64_t groups = args.panels.k / kGroupValues;
  const std::uint8_t* const data = args.panels.data + panel * args.panels.panel_bytes;
  for_quantised_tiles(rows.count, [&](std::int64_t at, auto count) {
    constexpr int M = decltype(count)::value;
    const std::int64_t row = rows.first + at;
    QuantisedTile<F, M, P> tile;
    tile.clear();
    // Further tiles find what the first one fetched, and look further ahead. A first tile of many that takes several
    // panels fetches those that come next; the others have no time to spare for it.
    const std::int64_t next = at == 0 ? P * args.panels.scales_at : 0;
    const std::int64_t distance = P > 1 ? next : at == 0 ? kAhead : 2 * kAhead;
    tile.multiply(args.panels, data, args.x + row * groups, {end, distance, at == 0 ? P : 0});
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) put_output(args.out, row + m, panel + p, tile.acc[m][p]);
    }
  });
}

inline void quantised_product(const QuantisedArgs& args, Stretch rows, Stretch panels) {
  with_form(args.panels.form, [&](auto form) {
    using F = decltype(form);
    const std::int64_t last = panels.first + panels.count, all = (args.out.width + kPanel - 1) / kPanel;
    const std::uint8_t* const end = args.panels.data + all * args.panels.panel_bytes - F::kGroupBytes;
    std::int64_t panel = panels.first;
    if constexpr (kWidePanels > 1) {
      const bool wide = rows.count >= kWideFrom;
      for (; wide && panel + kWidePanels <= last; panel += kWidePanels) {
        quantised_rows<F, kWidePanels>(args, rows, panel, end);
      }
    }
    for (; panel < last; ++panel) quantised_rows<F, 1>(args, rows, panel, end);
  });
}

}  // namespace headrace::kernels::HEADRACE_ISA
