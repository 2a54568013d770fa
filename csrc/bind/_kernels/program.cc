#include "kernels/program.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/_kernels/arrays.h"

namespace headrace::bind {
namespace {

using kernels::Program;
using AnyInts = nb::ndarray<const std::int32_t, nb::c_contig, nb::device::cpu>;

std::vector<const void*> pointers(const std::vector<AnyInts>& inputs) {
  std::vector<const void*> out;
  for (const AnyInts& input : inputs) out.push_back(input.data());
  return out;
}

// The arrays are step inputs in the order they were declared; their sizes are implied by the step's.
void run(const Program& self, std::int64_t tokens, std::int64_t logits, std::int64_t slices, std::int64_t max_blocks,
         const std::vector<AnyInts>& inputs) {
  const std::vector<const void*> at = pointers(inputs);
  const nb::gil_scoped_release unlocked;
  self.run({tokens, logits, slices, max_blocks}, at);
}

std::vector<double> timed_run(const Program& self, std::int64_t tokens, std::int64_t logits, std::int64_t slices,
                              std::int64_t max_blocks, const std::vector<AnyInts>& inputs) {
  const std::vector<const void*> at = pointers(inputs);
  const nb::gil_scoped_release unlocked;
  return self.timed_run({tokens, logits, slices, max_blocks}, at);
}

}  // namespace

void bind_program(nb::module_& m) {
  nb::class_<Program>(m, "Program", "Kernel calls recorded once and replayed without Python.")
      .def(
          "__init__",
          [](Program* self, std::int64_t tokens, std::int64_t logits) { new (self) Program({tokens, logits, 0, 0}); },
          nb::arg("tokens"), nb::arg("logits"), "Capacities; they must differ.")
      .def(
          "input", [](Program& self, std::size_t index, AnyInts array) { self.input(index, array.data()); },
          nb::arg("index"), nb::arg("array").noconvert(), "Declares the array to be step input `index`.")
      .def(
          "start", [](Program& self) { Program::recording() = &self; },
          "From now on this thread's kernel calls are recorded here instead of run.")
      .def_static(
          "stop", [] { Program::recording() = nullptr; }, "Ends the recording of this thread.")
      .def("run", &run, nb::arg("tokens"), nb::arg("logits"), nb::arg("slices"), nb::arg("max_blocks"),
           nb::arg("inputs"), "Replays the calls over a step of these sizes.")
      .def("names", &Program::names, "What each recorded call is.")
      .def("timed_run", &timed_run, nb::arg("tokens"), nb::arg("logits"), nb::arg("slices"), nb::arg("max_blocks"),
           nb::arg("inputs"), "Replays, and returns the seconds of each call; with one thread, of processor time.")
      .def("__len__", &Program::size);
}

}  // namespace headrace::bind
