// Conversions between numpy arrays and the core's spans and vectors. Inputs are read in place; outputs are views into
// the C++ object that owns the data, kept alive by the array.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>
#include <vector>

namespace headrace::bind {

namespace nb = nanobind;

template <typename T>
using InArray = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using OutArray = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
template <typename T>
using View = nb::ndarray<nb::numpy, const T, nb::ndim<1>>;

template <typename T>
std::span<const T> as_span(const InArray<T>& array) {
  return {array.data(), array.shape(0)};
}

template <typename T>
std::span<T> as_span(const OutArray<T>& array) {
  return {array.data(), array.size()};
}

template <typename T>
std::vector<T> as_vector(const InArray<T>& array) {
  return {array.data(), array.data() + array.shape(0)};
}

template <typename T>
View<T> view_of(const std::vector<T>& data, nb::handle owner) {
  return View<T>(data.data(), {data.size()}, owner);
}

// A numpy array that owns a copy made for the caller.
template <typename T>
View<T> own(std::vector<T> data) {
  auto* held = new std::vector<T>(std::move(data));
  nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return View<T>(held->data(), {held->size()}, owner);
}

}  // namespace headrace::bind
