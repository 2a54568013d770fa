// Array arguments of the module, taken without a copy, and the checks that stand between Python and raw
// pointers. Wrong dtype, rank, device or order is a TypeError by nanobind; wrong sizes or index contents are
// a ValueError here.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include "kernels/checks.h"
#include "kernels/ops.h"

namespace headrace::bind {

namespace nb = nanobind;

template <typename T, int Rank>
using Array = nb::ndarray<T, nb::ndim<Rank>, nb::c_contig, nb::device::cpu>;

template <int Rank>
using Floats = Array<const float, Rank>;
template <int Rank>
using FloatsOut = Array<float, Rank>;
template <int Rank>
using Ints = Array<const std::int32_t, Rank>;
template <int Rank>
using IntsOut = Array<std::int32_t, Rank>;
using Longs = Array<const std::int64_t, 1>;

// A paged cache (blocks, heads, block size, row): float32, bfloat16 passed as uint16, or int16 or int8, whose rows end
// with their scale. A block is contiguous, blocks may lie apart.
using CacheArray = nb::ndarray<nb::ndim<4>, nb::device::cpu>;

template <typename A>
std::int64_t size_of(const A& array, int axis) {
  return static_cast<std::int64_t>(array.shape(static_cast<std::size_t>(axis)));
}

using kernels::require;
using kernels::require_range;

template <typename A>
void require_size(const A& array, int axis, std::int64_t want, const char* name) {
  const std::int64_t have = size_of(array, axis);
  if (have == want) return;
  throw std::invalid_argument(std::string(name) + ": dimension " + std::to_string(axis) + " is " +
                              std::to_string(have) + ", expected " + std::to_string(want));
}

// Elements from one block to the next; refuses blocks that are not contiguous or overlap.
inline std::int64_t block_stride(const CacheArray& array, const char* name) {
  std::int64_t side_by_side = 1;
  for (int axis = 3; axis > 0; --axis) {
    const bool fits = array.shape(axis) <= 1 || array.stride(axis) == side_by_side;
    require(fits, std::string(name) + ": the rows of a block must lie side by side");
    side_by_side *= size_of(array, axis);
  }
  if (array.shape(0) <= 1) return side_by_side;
  require(array.stride(0) >= side_by_side, std::string(name) + ": blocks must not overlap");
  return array.stride(0);
}

inline kernels::KvFormat format_of(const CacheArray& array, const char* name) {
  using kernels::KvFormat;
  const auto is = [&array](auto code) { return array.dtype() == nb::dtype<decltype(code)>(); };
  if (is(float{})) return KvFormat::kFloat32;
  if (is(std::uint16_t{})) return KvFormat::kBfloat16;
  if (is(std::int16_t{})) return KvFormat::kInt16;
  require(is(std::int8_t{}), std::string(name) + ": must be float32, bfloat16, int16 or int8");
  return KvFormat::kInt8;
}

inline kernels::KvCache cache_of(const CacheArray& array, const char* name) {
  const std::int64_t stride = block_stride(array, name);
  const kernels::KvFormat format = format_of(array, name);
  return {array.data(), format, stride * kernels::element_bytes(format)};
}

// A pair of caches of one shape and format, and their head size.
struct Caches {
  kernels::KvCache k, v;
  std::int64_t head_dim;

  Caches(const CacheArray& k_cache, const CacheArray& v_cache)
      : k(cache_of(k_cache, "k_cache")), v(cache_of(v_cache, "v_cache")) {
    for (int axis = 0; axis < 4; ++axis) require_size(v_cache, axis, size_of(k_cache, axis), "v_cache");
    require(k.format == v.format, "v_cache: must have the dtype of k_cache");
    head_dim = size_of(k_cache, 3) - kernels::scale_bytes(k.format) / kernels::element_bytes(k.format);
    require(head_dim > 0, "k_cache: its rows have no room for a head");
  }
};

// offsets (rows + 1): from 0, never falling, to at most `total`.
inline void require_offsets(const Ints<1>& offsets, std::int64_t rows, std::int64_t total, const char* name) {
  require_size(offsets, 0, rows + 1, name);
  kernels::require_offsets(offsets.data(), rows, total, name);
}

void bind_runtime(nb::module_& m);
void bind_matmul(nb::module_& m);
void bind_rows(nb::module_& m);
void bind_attention(nb::module_& m);
void bind_records(nb::module_& m);
void bind_sampling(nb::module_& m);
void bind_program(nb::module_& m);
void bind_roofline(nb::module_& m);

}  // namespace headrace::bind
