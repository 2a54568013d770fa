#include "kernels/cache.h"

#include "kernels/dispatch.h"

namespace headrace::kernels {

void write_kv(const WriteKvArgs& args) {
  for (std::int64_t t = 0; t < args.tokens; ++t) {
    if (args.slots[t] < 0) continue;
    const std::int64_t block = args.slots[t] / args.block_size, offset = args.slots[t] % args.block_size;
    for (std::int64_t h = 0; h < args.kv_heads; ++h) {
      const std::int64_t from = (t * args.kv_heads + h) * args.head_dim;
      const CacheRow to{block, h * args.block_size + offset};
      table().write_row(args.k + from, args.head_dim, args.k_cache, to);
      table().write_row(args.v + from, args.head_dim, args.v_cache, to);
    }
  }
}

}  // namespace headrace::kernels
