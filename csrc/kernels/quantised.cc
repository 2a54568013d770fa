#include "kernels/quantised.h"

#include <cstring>

#include "kernels/half.h"
#include "kernels/threads.h"

namespace headrace::kernels {
namespace {

constexpr std::int64_t kVectorBytes = 64;

QuantisedPanels plan(const PanelForm& form, std::int64_t k) {
  const std::int64_t codes = k * kPanel * form.code_bits / 8;
  const std::int64_t scales = k / form.scale_values * kPanel * (form.half_scales ? 2 : 4);
  const std::int64_t end = codes + (form.symmetric ? 1 : 2) * scales;
  const std::int64_t rounded = (end + kVectorBytes - 1) / kVectorBytes * kVectorBytes;
  return {nullptr, form, k, rounded, codes, codes + scales};
}

void put_number(std::uint8_t* region, std::int64_t index, float value, bool half) {
  if (half) {
    const std::uint16_t bits = float_to_half(value);
    std::memcpy(region + 2 * index, &bits, sizeof bits);
  } else {
    std::memcpy(region + 4 * index, &value, sizeof value);
  }
}

float get_number(const std::uint8_t* region, std::int64_t index, bool half) {
  float value;
  std::uint16_t bits;
  if (!half) return std::memcpy(&value, region + 4 * index, sizeof value), value;
  return std::memcpy(&bits, region + 2 * index, sizeof bits), half_to_float(bits);
}

// The four codes of a quad as one word, and back.
std::uint32_t quad_word(const std::uint8_t* codes) {
  std::uint32_t word;
  std::memcpy(&word, codes, sizeof word);
  return word;
}

void put_codes(const PanelForm& form, std::uint8_t* vectors, std::int64_t lane, const std::uint8_t* codes) {
  const std::int64_t count = form.code_bits == 8 ? kQuads : kQuads / 2;
  for (std::int64_t j = 0; j < count; ++j) {
    std::uint32_t word = quad_word(codes + 4 * j);
    if (form.code_bits == 4) word |= quad_word(codes + 4 * (j + kQuads / 2)) << 4;
    std::memcpy(vectors + j * kVectorBytes + 4 * lane, &word, sizeof word);
  }
}

void get_codes(const PanelForm& form, const std::uint8_t* vectors, std::int64_t lane, std::uint8_t* codes) {
  for (std::int64_t j = 0; j < kQuads; ++j) {
    const bool high = form.code_bits == 4 && j >= kQuads / 2;
    const std::uint8_t* const from = vectors + (high ? j - kQuads / 2 : j) * kVectorBytes + 4 * lane;
    for (int i = 0; i < 4; ++i) {
      codes[4 * j + i] = form.code_bits == 8 ? from[i] : high ? from[i] >> 4 : from[i] & 15;
    }
  }
}

void put_group(const QuantisedPanels& p, std::uint8_t* panel, std::int64_t lane, std::int64_t g, const Group& group) {
  const std::int64_t per_group = kGroupValues / p.form.scale_values;
  put_codes(p.form, panel + g * kGroupValues * kPanel * p.form.code_bits / 8, lane, group.codes);
  for (std::int64_t i = 0; i < per_group; ++i) {
    put_number(panel + p.scales_at, (g * per_group + i) * kPanel + lane, group.scale[i], p.form.half_scales);
  }
  if (!p.form.symmetric) put_number(panel + p.minima_at, g * kPanel + lane, group.minimum, p.form.half_scales);
}

}  // namespace

QuantisedMatrix::QuantisedMatrix(const BlockFormat& format, const std::uint8_t* rows, std::int64_t n, std::int64_t k)
    : n_(n), panels_(plan(format.form, k)) {
  data_ = aligned_array<std::uint8_t>(static_cast<std::size_t>(bytes()));
  panels_.data = data_.get();
  std::uint8_t* const data = data_.get();
  const std::int64_t row_bytes = k / format.values * format.bytes;
  parallel_for(num_panels(), [&, data](std::int64_t index) {
    std::uint8_t* const panel = data + index * panels_.panel_bytes;
    if ((index + 1) * kPanel > n) std::memset(panel, 0, static_cast<std::size_t>(panels_.panel_bytes));
    for (std::int64_t lane = 0; lane < kPanel && index * kPanel + lane < n; ++lane) {
      const std::uint8_t* const row = rows + (index * kPanel + lane) * row_bytes;
      for (std::int64_t g = 0; g < k / kGroupValues; ++g) {
        put_group(panels_, panel, lane, g, decode_group(format.kind, row, g));
      }
    }
  });
}

void QuantisedMatrix::gather_row(std::int64_t index, float* out) const {
  const QuantisedPanels& p = panels_;
  const std::uint8_t* const panel = p.data + index / kPanel * p.panel_bytes;
  const std::int64_t lane = index % kPanel, run = p.form.scale_values;
  const int offset = !p.form.symmetric ? 0 : p.form.code_bits == 8 ? 128 : 8;
  for (std::int64_t at = 0; at < p.k; at += run) {
    std::uint8_t codes[kGroupValues];
    const std::int64_t group = at / kGroupValues, number = at / run * kPanel + lane;
    get_codes(p.form, panel + group * kGroupValues * kPanel * p.form.code_bits / 8, lane, codes);
    const float scale = get_number(panel + p.scales_at, number, p.form.half_scales);
    const float minimum = p.form.symmetric ? 0.0f : get_number(panel + p.minima_at, number, p.form.half_scales);
    for (std::int64_t i = 0; i < run; ++i) {
      const float value = scale * static_cast<float>(codes[at % kGroupValues + i] - offset);
      out[at + i] = p.form.symmetric ? value : value + minimum;
    }
  }
}

}  // namespace headrace::kernels
