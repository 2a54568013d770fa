#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/_kernels/arrays.h"
#include "kernels/affinity.h"
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
  m.def(
      "set_num_threads", &kernels::set_num_threads, nb::arg("n"), nb::call_guard<nb::gil_scoped_release>(),
      "Resize the thread pool, process-wide; none of its threads is bound any more. ValueError unless 1 <= n <= 1024.");
  m.def("bind_threads", &kernels::bind_threads, nb::arg("processors"), nb::call_guard<nb::gil_scoped_release>(),
        "Thread i runs on processors[i] alone, the caller of a kernel being thread 0; empty: no thread is bound. False "
        "when the system refused. ValueError unless there is one for each thread, or none.");
  m.def("bind_this_thread", &kernels::bind_this_thread, nb::arg("processor"),
        "Bind the calling thread to one processor. False when the system refuses.");
  m.def("release_this_thread", &kernels::release_this_thread,
        "Give the calling thread every processor the process had at its start. False when the system refuses.");
  m.def(
      "prefer_nodes", &kernels::prefer_nodes, nb::arg("nodes"),
      "New pages of the calling thread come from these memory nodes, in turns when several; empty: the default. False "
      "when the system refuses.");
  m.def("num_barriers", &kernels::num_barriers, "Jobs that threads have shared so far; each ends in a barrier.");
}

}  // namespace headrace::bind
