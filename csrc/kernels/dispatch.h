// The kernels compiled for each instruction set behind one table of function pointers, and the choice among
// them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/attention.h"
#include "kernels/ops.h"
#include "kernels/records.h"

namespace headrace::kernels {

struct Table {
  const char* name;
  // Products of a block of rows with a stretch of panels. The first panel and the number of panels of a dense product
  // are multiples of kGroupPanels; rows begin at a multiple of kRowBlock.
  void (*dense_product)(const DenseArgs&, Stretch rows, Stretch panels);
  void (*quantised_product)(const QuantisedArgs&, Stretch rows, Stretch panels);
  // What they read: rows as float32 (T, K), and, a block's worth at most, quantised; of a block only every parts-th
  // tile, so that several threads can share it. `space` holds k floats.
  void (*make_rows)(const InputRows&, Stretch rows, float* out);
  void (*quantise_rows)(const InputRows&, Stretch rows, std::int64_t part, std::int64_t parts, float* space,
                        ActivationBlock* out);
  void (*rms_norm)(const NormArgs&);
  void (*rope)(const RopeArgs&);
  void (*gate_mul)(const GateArgs&);
  void (*qkv_to_cache)(const HeadsArgs&);
  void (*axpy)(const AxpyArgs&);
  void (*write_row)(const float* x, std::int64_t head_dim, KvCache cache, CacheRow row);
  // Attention of one chunk to one KV head: whole, or one partition and then the merge (see
  // generic/attention.h). `next` is what the calling thread will probably read after it: blocks lie anywhere, and no
  // processor foresees where.
  void (*attend_chunk)(const AttentionArgs&, const KeyRange& whole, const KeyRange& next, float* scratch);
  void (*attend_part)(const AttentionArgs&, const KeyRange& part, const KeyRange& next, float* to, float* scratch);
  void (*finish_parts)(const AttentionArgs&, const AttentionChunk&, std::int64_t kv_head, float* parts,
                       std::int64_t count, float* scratch);
  // Records as floats, and what reads them (see generic/records.h, latent_attention.h, index_scores.h).
  void (*unpack_record)(RecordFormat format, const std::uint8_t* record, std::int64_t columns, float* out);
  void (*attend_latent)(const LatentRow&);
  void (*score_keys)(const ChooseArgs&, const ScoreTile&, float* scratch);
  // Passes over one row of logits (see generic/scan.h).
  RowTop (*row_top)(const float* x, std::int64_t n);
  float (*sum_exp)(const float* x, std::int64_t n, float top);
  void (*relative_logits)(const float* x, std::int64_t n, float top, float temperature, float* z);
  void (*block_maxima)(const float* x, std::int64_t n, std::int64_t block, float* maxima);
  std::int64_t (*collect_at_least)(const float* x, std::int64_t n, float limit, std::int32_t* ids);
  std::int64_t (*count_ahead)(const float* x, std::int64_t n, float value, std::int32_t id);
  std::int32_t (*draw)(const float* z, const std::int32_t* ids, std::int64_t n, NoiseKey key);
};

// The table in use: the best one this processor runs, unless set_isa chose another.
const Table& table();

// Names, best first: of "avx512", "avx2", "scalar" those that were compiled and that this processor runs.
std::vector<std::string> available_isas();
std::string isa();
// Throws std::invalid_argument for a name that is not available. Packed weights stay valid.
void set_isa(std::string_view name);

}  // namespace headrace::kernels
