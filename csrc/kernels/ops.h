// Arguments of the kernels: plain pointers into arrays the caller owns, row-major unless said otherwise.
// Letters as in the Python interface: T tokens, S slices, R rows of logits, V vocabulary, D head size.
// Nothing is checked down here: shapes and index contents are the binding's business.
#pragma once

#include <cstdint>

#include "kernels/kv_cache.h"
#include "kernels/packed.h"
#include "kernels/quantised.h"

namespace headrace::kernels {

enum class Gate { kSilu, kGeluTanh };

// How the rows (T, K) that a product reads are made from x: taken as they are; as NormArgs does it, x + residual going
// to sum_out when there is a residual; or as GateArgs does it, from x (T, 2K).
enum class Made { kAsIs, kNorm, kGate };
struct InputRows {
  const float* x = nullptr;
  std::int64_t k = 0;
  Made made = Made::kAsIs;
  const float* residual = nullptr;
  const float* norm = nullptr;
  float* sum_out = nullptr;
  float eps = 0;
  Gate gate = Gate::kSilu;

  std::int64_t x_width() const { return made == Made::kGate ? 2 * k : k; }
};

struct Stretch {
  std::int64_t first, count;
};

// Rows of a product are cut into blocks of this many, and those into tiles that share each loaded weight. A multiple of
// every instruction set's tile, so that where a tile begins does not depend on who works on it.
inline constexpr std::int64_t kRowBlock = 96;

// 32 values of one row of activations as codes * scale. All zero when every value is next to nothing.
struct ActivationBlock {
  std::int8_t codes[kGroupValues];
  float scale;
  float scaled_sum;        // scale times the sum of the codes
  std::int32_t minus_sum;  // of all codes, and of the first sixteen
  std::int32_t minus_first;
};
static_assert(sizeof(ActivationBlock) == 48);

// Where the outputs of one matrix go: output n of row t to y[(t - row) * stride + n - column], n < width. bias may be
// null.
struct OutputRows {
  const float* bias;
  float* y;
  std::int64_t stride, width;
  std::int64_t row = 0, column = 0;
};

// A product with x (T, K), and one with quantised x: the block of group g of row t, t in a tile that begins at row b
// and is m high, lies at x[b * K / 32 + g * m + t - b].
struct DenseArgs {
  const float* x;
  DensePanels panels;
  OutputRows out;
};
struct QuantisedArgs {
  const ActivationBlock* x;
  QuantisedPanels panels;
  OutputRows out;
};

// y (rows, width) = norm of x, or of x + residual, which then goes to sum_out.
struct NormArgs {
  const float* x;
  const float* residual;
  const float* weight;
  float* y;
  float* sum_out;
  std::int64_t rows, width;
  float eps;
};

// Rotates x (T, heads, D) into y by table (max_pos, 2, rot / 2).
struct RopeArgs {
  const float* x;
  const std::int32_t* positions;
  const float* table;
  float* y;
  std::int64_t tokens, heads, head_dim, rot;
  bool interleaved;
};

// Splits qkv (T, (q_heads + 2 kv_heads) * D) into heads, norms q and k heads where weights are given, rotates them,
// writes k and v to the caches at slots (-1: nowhere) and q (T, q_heads, D) to `q`.
struct HeadsArgs {
  const float* qkv;
  const float* q_norm;
  const float* k_norm;
  const std::int32_t* positions;
  const float* table;
  const std::int32_t* slots;
  KvCache k_cache, v_cache;
  float* q;
  std::int64_t tokens, q_heads, kv_heads, head_dim, rot, blocks, block_size, max_positions;
  float eps;
  bool interleaved;
};

// out (count, width) = rows `index` of x (tokens, width).
struct GatherRowsArgs {
  const float* x;
  const std::int32_t* index;
  float* out;
  std::int64_t count, width, tokens;
};

// out = x * factor + other (when there is one), element by element, (rows, width).
struct AxpyArgs {
  const float* x;
  const float* other;
  float* out;
  std::int64_t rows, width;
  float factor;
};

// y (T, F) = gate(x[:, :F]) * x[:, F:] with x (T, 2F).
struct GateArgs {
  Gate gate;
  const float* x;
  float* y;
  std::int64_t tokens, width;
};

// q, out (T, q_heads, D); caches (blocks, kv_heads, block_size, D); block_table (S, max_blocks).
struct AttentionArgs {
  const float* q;
  KvCache k_cache, v_cache;
  const std::int32_t* block_table;
  const std::int32_t* query_start;
  const std::int32_t* seq_lens;
  float* out;
  std::int64_t tokens, slices, max_blocks, q_heads, kv_heads, block_size, head_dim;
  float scale;
  std::int32_t window;
  std::int64_t blocks = 0;  // of the caches; what block ids are checked against
};

// Maximum of a row of logits and the lowest id that has it; a NaN anywhere makes the value NaN.
struct RowTop {
  float value;
  std::int32_t id;
};

// Which draw of which sequence: the sampler's noise is a function of this and the vocabulary id.
struct NoiseKey {
  std::uint64_t seed, position;
};

}  // namespace headrace::kernels
