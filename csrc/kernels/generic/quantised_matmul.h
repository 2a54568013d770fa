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

// Codes are asked for this many bytes before they are needed. What the hardware fetches by itself comes too late once
// several rows share the codes: this is what keeps a step of up to some twenty rows bound by memory.
inline constexpr std::int64_t kAhead = 8192;

// How one tile fetches: `distance` bytes ahead, in codes that lie before `end` (the item's last group).
struct Fetch {
  const std::uint8_t* end;
  std::int64_t distance;

  const std::uint8_t* from(const std::uint8_t* codes) const {
    return end - codes > distance ? codes + distance : codes;
  }
};

// A PanelForm at compile time.
template <int Bits, int ScaleValues, bool Symmetric, bool HalfScales>
struct Form {
  static constexpr int kScaleValues = ScaleValues;
  static constexpr bool kSymmetric = Symmetric;
  static constexpr int kGroupBytes = kGroupValues * kPanel * Bits / 8;
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

// M rows of activations by one panel. `acc` goes through all groups; the integer sums live for one group (or half).
template <typename F, int M>
struct QuantisedTile {
  Vec acc[M];
  IntVec dot[M];

  void clear() {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) acc[m] = zero();
  }

  // Sums start at minus the offset times the sum of the activations' codes: then they come out as if codes were signed.
  template <int half>
  void start(const ActivationBlock* x) {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      if constexpr (!F::kSymmetric) {
        dot[m] = set1_int(0);
      } else {
        const std::int32_t part = F::kScaleValues == 32 ? x[m].minus_sum
                                  : half == 0           ? x[m].minus_first
                                                        : x[m].minus_sum - x[m].minus_first;
        dot[m] = shift_left<F::kOffsetShift>(set1_int(static_cast<std::uint32_t>(part)));
      }
    }
  }

  // Quads [quad, end) of the group, fetching as much elsewhere.
  template <int quad, int end>
  void add_quads(const std::uint8_t* codes, const ActivationBlock* x, const std::uint8_t* ahead) {
    const Bytes w = F::template codes_of<quad>(codes);
    if constexpr (quad < F::kGroupBytes / 64) __builtin_prefetch(ahead + quad * 64);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) dot[m] = add_dots(dot[m], w, x[m].codes + 4 * quad);
    if constexpr (quad + 1 < end) add_quads<quad + 1, end>(codes, x, ahead);
  }

  void finish(Vec scale, const ActivationBlock* x) {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) acc[m] = fused(to_float_signed(dot[m]), mul(scale, set1(x[m].scale)), acc[m]);
  }

  void add_minimum(Vec minimum, const ActivationBlock* x) {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) acc[m] = fused(minimum, set1(x[m].scaled_sum), acc[m]);
  }

  void multiply(const QuantisedPanels& panels, const std::uint8_t* panel, const ActivationBlock* x, Fetch fetch) {
    const std::uint8_t* const scales = panel + panels.scales_at;
    const std::uint8_t* const minima = panel + panels.minima_at;
    const std::uint8_t* codes = panel;
    for (std::int64_t g = 0; g < panels.k / kGroupValues; ++g, codes += F::kGroupBytes, x += M) {
      const std::uint8_t* const ahead = fetch.from(codes);
      if constexpr (F::kScaleValues == 32) {
        start<0>(x);
        add_quads<0, 8>(codes, x, ahead);
        finish(F::number(scales, g), x);
      } else {
        start<0>(x);
        add_quads<0, 4>(codes, x, ahead);
        finish(F::number(scales, 2 * g), x);
        start<1>(x);
        add_quads<4, 8>(codes, x, ahead);
        finish(F::number(scales, 2 * g + 1), x);
      }
      if constexpr (!F::kSymmetric) add_minimum(F::number(minima, g), x);
    }
  }
};

template <typename F>
inline void quantised_rows(const QuantisedArgs& args, Stretch rows, std::int64_t panel, const std::uint8_t* end) {
  const std::int64_t groups = args.panels.k / kGroupValues;
  const std::uint8_t* const data = args.panels.data + panel * args.panels.panel_bytes;
  for_row_tiles<kTileHeight>(rows.count, [&](std::int64_t at, auto count) {
    constexpr int M = decltype(count)::value;
    static_assert(kRowBlock % kTileHeight == 0);
    const std::int64_t row = rows.first + at;
    QuantisedTile<F, M> tile;
    tile.clear();
    // Further tiles find what the first one fetched, and look further ahead.
    tile.multiply(args.panels, data, args.x + row * groups, {end, at == 0 ? kAhead : 2 * kAhead});
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) put_output(args.out, row + m, panel, tile.acc[m]);
  });
}

// Rows times panels, one panel at a time: it stays in the first cache while the rows pass by.
inline void quantised_product(const QuantisedArgs& args, Stretch rows, Stretch panels) {
  with_form(args.panels.form, [&](auto form) {
    using F = decltype(form);
    const std::int64_t last = panels.first + panels.count;
    const std::uint8_t* const end = args.panels.data + last * args.panels.panel_bytes - F::kGroupBytes;
    for (std::int64_t panel = panels.first; panel < last; ++panel) quantised_rows<F>(args, rows, panel, end);
  });
}

}  // namespace headrace::kernels::HEADRACE_ISA
