// Writing new keys and values into the paged cache.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace headrace::kernels {

// k, v (tokens, kv_heads, head_dim) into caches (blocks, kv_heads, block_size, head_dim).
struct WriteKvArgs {
  const float* k;
  const float* v;
  KvCache k_cache, v_cache;
  const std::int32_t* slots;
  std::int64_t tokens, kv_heads, block_size, head_dim;
};

// Token t goes to slots[t] = block * block_size + offset; -1 writes nothing. Slots must differ from one
// another.
void write_kv(const WriteKvArgs& args);

}  // namespace headrace::kernels
