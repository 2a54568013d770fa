// The extension module _kernels: the CPU kernels on arrays that the caller owns. Outputs are arguments too.
#include "bind/_kernels/arrays.h"

NB_MODULE(_kernels, m) {
  m.doc() = "CPU kernels: arithmetic on float32 arrays, chosen per processor at run time.";
  headrace::bind::bind_runtime(m);
  headrace::bind::bind_matmul(m);
  headrace::bind::bind_rows(m);
  headrace::bind::bind_attention(m);
  headrace::bind::bind_records(m);
  headrace::bind::bind_sampling(m);
  headrace::bind::bind_program(m);
  headrace::bind::bind_roofline(m);
}
