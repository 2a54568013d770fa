// Fills the dispatch table of the instruction set that is being compiled.
#pragma once

#include "kernels/dispatch.h"
#include "kernels/generic/attention.h"
#include "kernels/generic/elementwise.h"
#include "kernels/generic/index_scores.h"
#include "kernels/generic/input_rows.h"
#include "kernels/generic/latent_attention.h"
#include "kernels/generic/matmul.h"
#include "kernels/generic/quantised_matmul.h"
#include "kernels/generic/records.h"
#include "kernels/generic/scan.h"

namespace headrace::kernels::HEADRACE_ISA {

inline constexpr Table make_table(const char* name) {
  Table t{};
  t.name = name;
  t.dense_product = dense_product;
  t.quantised_product = quantised_product;
  t.make_rows = make_rows;
  t.quantise_rows = quantise_rows;
  t.rms_norm = rms_norm;
  t.rope = rope;
  t.gate_mul = gate_mul;
  t.qkv_to_cache = qkv_to_cache;
  t.axpy = axpy;
  t.write_row = write_row;
  t.attend_chunk = attend_chunk;
  t.attend_part = attend_part;
  t.finish_parts = finish_parts;
  t.unpack_record = unpack_record;
  t.attend_latent = attend_latent;
  t.score_keys = score_keys;
  t.row_top = row_top;
  t.sum_exp = sum_exp;
  t.relative_logits = relative_logits;
  t.block_maxima = block_maxima;
  t.collect_at_least = collect_at_least;
  t.count_ahead = count_ahead;
  t.draw = draw;
  return t;
}

}  // namespace headrace::kernels::HEADRACE_ISA
