#include "kernels/roofline.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <string>
#include <tuple>

#include "bind/_kernels/arrays.h"

namespace headrace::bind {
namespace {

using Work = std::tuple<double, double, std::string>;

Work tell(const kernels::LoopWork& work) { return {work.operations, work.checksum, work.method}; }

void require_rounds(std::int64_t rounds) { require(rounds >= 1, "rounds must be at least 1"); }

}  // namespace

void bind_roofline(nb::module_& m) {
  m.def(
      "read_all",
      [](const Array<const std::uint64_t, 1>& words) {
        const std::int64_t count = size_of(words, 0);
        const nb::gil_scoped_release release;
        return kernels::read_all(words.data(), count);
      },
      nb::arg("words"), "Reads every word once, shared among the threads; a checksum. For measuring bandwidth.");
  m.def(
      "multiply_floats",
      [](std::int64_t rounds) {
        require_rounds(rounds);
        const nb::gil_scoped_release release;
        return tell(kernels::multiply_floats(rounds));
      },
      nb::arg("rounds"), "(operations, checksum, method) of a float32 multiply-add loop. For measuring the peak.");
  m.def(
      "multiply_bytes",
      [](std::int64_t rounds) {
        require_rounds(rounds);
        const nb::gil_scoped_release release;
        return tell(kernels::multiply_bytes(rounds));
      },
      nb::arg("rounds"), "(operations, checksum, method) of a loop of byte products. For measuring the peak.");
}

}  // namespace headrace::bind
