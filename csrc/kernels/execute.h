// One entry per kernel call: check() looks at index contents (the caller has checked shapes), execute() computes.
// Everything that runs a kernel on foreign data, at once or replayed, goes through these two.
#pragma once

#include "kernels/matmul.h"
#include "kernels/ops.h"

namespace headrace::kernels {

// Each throws std::invalid_argument naming the array when an index would leave what it indexes.
void check(const EmbeddingArgs& args);
void check(const HeadsArgs& args);
void check(const GatherRowsArgs& args);
void check(const AttentionArgs& args);
inline void check(const LinearArgs&) {}
inline void check(const NormArgs&) {}
inline void check(const GateArgs&) {}
inline void check(const AxpyArgs&) {}

void execute(const LinearArgs& args);
void execute(const EmbeddingArgs& args);
void execute(const NormArgs& args);
void execute(const GateArgs& args);
void execute(const HeadsArgs& args);
void execute(const GatherRowsArgs& args);
void execute(const AxpyArgs& args);
void execute(const AttentionArgs& args);

}  // namespace headrace::kernels
