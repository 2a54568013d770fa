#include "kernels/cache.h"

#include <cstring>

namespace headrace::kernels {

void write_kv(const WriteKvArgs& args) {
  const std::size_t bytes = static_cast<std::size_t>(args.head_dim) * sizeof(float);
  for (std::int64_t t = 0; t < args.tokens; ++t) {
    if (args.slots[t] < 0) continue;
    const std::int64_t block = args.slots[t] / args.block_size, offset = args.slots[t] % args.block_size;
    for (std::int64_t h = 0; h < args.kv_heads; ++h) {
      const std::int64_t from = (t * args.kv_heads + h) * args.head_dim;
      const std::int64_t to = ((block * args.kv_heads + h) * args.block_size + offset) * args.head_dim;
      std::memcpy(args.k_cache + to, args.k + from, bytes);
      std::memcpy(args.v_cache + to, args.v + from, bytes);
    }
  }
}

}  // namespace headrace::kernels
