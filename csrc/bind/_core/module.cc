// The scheduling core for Python. Nothing here decides anything.
#include <nanobind/nanobind.h>

#include "core/types.h"

namespace nb = nanobind;

namespace headrace::bind {
void bind_ledger(nb::module_& m);
void bind_pool(nb::module_& m);
void bind_scheduler(nb::module_& m);
void bind_pack(nb::module_& m);
void bind_verify(nb::module_& m);
void bind_store(nb::module_& m);
}  // namespace headrace::bind

NB_MODULE(_core, m) {
  nb::set_leak_warnings(false);  // a daemon thread may still hold a plan when the interpreter ends
  m.doc() = "Scheduling core: ledger, block pool, planners, packing. Pure functions of the calls made.";
  headrace::bind::bind_ledger(m);
  headrace::bind::bind_pool(m);
  headrace::bind::bind_verify(m);
  headrace::bind::bind_scheduler(m);
  headrace::bind::bind_pack(m);
  headrace::bind::bind_store(m);
}
