// The kernels of generic/ compiled for avx512; flags are in sources.cmake.
#define HEADRACE_ISA avx512
#define HEADRACE_ISA_AVX512
#include "kernels/generic/table.h"

namespace headrace::kernels {
extern const Table avx512_table;
constinit const Table avx512_table = avx512::make_table("avx512");
}  // namespace headrace::kernels
