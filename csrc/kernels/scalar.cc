// The kernels of generic/ compiled for scalar; flags are in sources.cmake.
#define HEADRACE_ISA scalar
#define HEADRACE_ISA_SCALAR
#include "kernels/generic/table.h"

namespace headrace::kernels {
extern const Table scalar_table;
constinit const Table scalar_table = scalar::make_table("scalar");
}  // namespace headrace::kernels
