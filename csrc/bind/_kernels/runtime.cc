#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/_kernels/arrays.h"
#include "kernels/dispatch.h"
#include "kernels/threads.h"

namespace headrace::bind {

void bind_runtime(nb::module_& m) {
  m.def("isa", &kernels::isa, "Name of the instruction set in use.");
  m.def("available_isas", &kernels::available_isas, "Instruction sets this processor runs, best first.");
  m.def(
      "set_isa", [](const std::string& name) { kernels::set_isa(name); }, nb::arg("name"),
      "Use this instruction set from now on, process-wide. ValueError when it is not available.");
  m.def("num_threads", &kernels::num_threads, "Threads that share a kernel's work, the caller included.");
  m.def("set_num_threads", &kernels::set_num_threads, nb::arg("n"), nb::call_guard<nb::gil_scoped_release>(),
        "Resize the thread pool, process-wide. ValueError unless 1 <= n <= 1024.");
  m.def("num_barriers", &kernels::num_barriers, "Jobs that threads have shared so far; each ends in a barrier.");
}

}  // namespace headrace::bind
