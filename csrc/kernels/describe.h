// What a kernel call is, in words for a profile: the op, and the sizes that do not change with the step. Nothing is
// computed from these names.
#pragma once

#include <string>

#include "kernels/matmul.h"
#include "kernels/ops.h"

namespace headrace::kernels {

inline std::string describe(const LinearArgs& a) {
  const std::string size = std::to_string(a.weight->k()) + "x" + std::to_string(a.weight->n());
  const bool normed = a.in.made == Made::kNorm, gated = a.in.made == Made::kGate;
  const std::string before = gated ? "gate + " : !normed ? "" : a.in.residual ? "add + norm + " : "norm + ";
  return before + (a.best ? "argmax " : "linear ") + size;
}
inline std::string describe(const EmbeddingArgs&) { return "embedding"; }
inline std::string describe(const NormArgs& a) { return a.residual ? "add_rms_norm" : "rms_norm"; }
inline std::string describe(const GateArgs& a) { return a.gate == Gate::kSilu ? "silu_mul" : "gelu_tanh_mul"; }
inline std::string describe(const HeadsArgs&) { return "qkv_to_cache"; }
inline std::string describe(const GatherRowsArgs&) { return "gather_rows"; }
inline std::string describe(const AxpyArgs&) { return "axpy"; }
inline std::string describe(const AttentionArgs&) { return "paged_attention"; }

}  // namespace headrace::kernels
