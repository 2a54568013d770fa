#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/dispatch.h"
#include "kernels/half.h"
#include "kernels/matmul.h"
#include "kernels/threads.h"
#include "tests/check.h"
#include "tests/kernels_inputs.h"

using namespace headrace::kernels;
using headrace::testing::for_each_isa;
using headrace::testing::numbers;

namespace {

const char* const kKinds[] = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"};

// Random bytes; the exponents of half-precision fields are kept small.
std::vector<std::uint8_t> blocks(const BlockFormat& format, std::int64_t n, std::int64_t k) {
  const std::int64_t count = n * k / format.values;
  std::vector<std::uint8_t> out;
  for (const float x : numbers(count * format.bytes, 5)) out.push_back(static_cast<std::uint8_t>((x + 2) * 64));
  for (std::int64_t b = 0; b < count; ++b) {
    std::uint8_t* const block = out.data() + b * format.bytes;
    const bool last = format.kind == BlockKind::kQ6_K;
    const int fields = !last && !format.form.symmetric ? 2 : 1;
    for (int f = 0; f < fields; ++f) {
      std::uint8_t& top = block[last ? 209 : 2 * f + 1];
      top = (top & 0x80) | 0x24 | (top & 3);
    }
  }
  return out;
}

struct Fixture {
  Fixture(const char* kind, std::int64_t rows, std::int64_t columns)
      : format(block_format(kind)), n(rows), k(columns), data(blocks(format, n, k)), weight(k) {
    weight.append(QuantisedMatrix(format, data.data(), n, k));
  }

  Group group(std::int64_t row, std::int64_t g) const {
    return decode_group(format.kind, data.data() + row * (k / format.values * format.bytes), g);
  }
  int offset() const { return !format.form.symmetric ? 0 : format.form.code_bits == 8 ? 128 : 8; }

  std::vector<float> product(const std::vector<float>& x) const {
    const auto tokens = static_cast<std::int64_t>(x.size()) / k;
    std::vector<float> y(static_cast<std::size_t>(tokens * n));
    linear({{x.data(), weight.k()}, &weight, nullptr, y.data(), tokens});
    return y;
  }

  const BlockFormat& format;
  const std::int64_t n, k;
  const std::vector<std::uint8_t> data;
  Weight weight;
};

// One output by the chain of operations that quantised_matmul.h promises.
float chain(const Fixture& f, const float* x, std::int64_t row) {
  float y = 0;
  for (std::int64_t g = 0; g < f.k / 32; ++g) {
    float largest = 0;
    for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(x[32 * g + i]));
    int codes[32], total = 0;
    for (int i = 0; i < 32; ++i) {
      total += codes[i] = static_cast<int>(std::nearbyintf(x[32 * g + i] * (127.0f / largest)));
    }
    const Group w = f.group(row, g);
    const float scale = largest / 127.0f;
    for (int at = 0; at < 32; at += f.format.form.scale_values) {
      int dot = 0;
      for (int i = at; i < at + f.format.form.scale_values; ++i) dot += (w.codes[i] - f.offset()) * codes[i];
      y = std::fmaf(static_cast<float>(dot), w.scale[at / 16] * scale, y);
    }
    if (!f.format.form.symmetric) y = std::fmaf(w.minimum, scale * static_cast<float>(total), y);
  }
  return y;
}

}  // namespace

TEST(half_precision_goes_there_and_back) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = half_to_float(half);
    if ((bits & 0x7FFF) > 0x7C00) {
      CHECK(value != value);
    } else {
      CHECK_EQ(float_to_half(value), half);
    }
  }
  CHECK_EQ(half_to_float(0x3C00), 1.0f);
  CHECK_EQ(half_to_float(0x0001), 0x1p-24f);
  CHECK_EQ(half_to_float(0xC500), -5.0f);
  CHECK_EQ(float_to_half(65520.0f), 0x7C00);
}

TEST(products_are_the_promised_chain_on_every_instruction_set) {
  for (const char* kind : kKinds) {
    const Fixture f(kind, 37, 512);
    const auto x = numbers(15 * f.k, 7);
    for_each_isa([&] {
      const auto y = f.product(x);
      for (std::int64_t t = 0; t < 15; ++t) {
        for (std::int64_t n = 0; n < f.n; ++n) CHECK_EQ(y[t * f.n + n], chain(f, x.data() + t * f.k, n));
      }
    });
  }
}

TEST(rows_threads_and_blocks_of_rows_change_nothing) {
  const Fixture f("Q4_1", 50, 96);
  const auto x = numbers(200 * f.k, 8);
  for_each_isa([&] {
    const auto whole = f.product(x);
    for (const std::int64_t m : {1, 2, 11, 13, 25, 97, 199}) {
      set_num_threads(1 + static_cast<int>(m % 3));
      const auto y = f.product({x.begin(), x.begin() + m * f.k});
      CHECK(std::equal(y.begin(), y.end(), whole.begin()));
    }
  });
}

TEST(embedding_dequantises) {
  for (const char* kind : kKinds) {
    const Fixture f(kind, 19, 256);
    std::vector<float> row(256);
    for (const std::int32_t id : {0, 15, 16, 18}) {
      embedding(f.weight, &id, 1, row.data());
      for (std::int64_t i = 0; i < f.k; ++i) {
        const Group g = f.group(id, i / 32);
        const float value = g.scale[i % 32 / 16] * static_cast<float>(g.codes[i % 32] - f.offset());
        CHECK_EQ(row[i], f.format.form.symmetric ? value : value + g.minimum);
      }
    }
  }
}

TEST(unknown_formats_are_named) { CHECK_THROWS(std::invalid_argument, block_format("Q2_K")); }
