// The kernels of generic/ compiled for avx2; flags are in sources.cmake.
#define HEADRACE_ISA avx2
#define HEADRACE_ISA_AVX2
#include "kernels/generic/table.h"

namespace headrace::kernels {
extern const Table avx2_table;
constinit const Table avx2_table = avx2::make_table("avx2");
}  // namespace headrace::kernels
