// The verification planner and its cost model for Python.
#include "core/verify.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/_core/arrays.h"
#include "core/cost.h"

namespace headrace::bind {

using namespace nanobind::literals;
using core::CostModel;
using core::StepCost;
using core::VerifyChoice;

namespace {

using Confidences = std::vector<std::vector<double>>;

// An empty list of confidences: none are known for that sequence.
std::vector<core::VerifyRow> rows_of(const std::vector<std::int32_t>& num_drafts, const Confidences& confidences) {
  if (num_drafts.size() != confidences.size())
    throw core::InvalidField("confidences", "must hold one list per sequence");
  std::vector<core::VerifyRow> rows;
  for (std::size_t i = 0; i < num_drafts.size(); ++i) {
    if (num_drafts[i] < 0) throw core::InvalidField("num_drafts", "must not be negative");
    core::check_confidences(confidences[i]);
    rows.push_back({num_drafts[i], confidences[i]});
  }
  return rows;
}

StepCost make_cost(std::vector<std::int32_t> sizes, std::vector<double> times_ms, double slope_ms, double sampler_ms,
                   std::vector<std::pair<std::int32_t, double>> sampler_by_seqs) {
  StepCost cost{std::move(sizes), std::move(times_ms), slope_ms, sampler_ms, std::move(sampler_by_seqs)};
  core::check_cost(cost);
  return cost;
}

}  // namespace

void bind_verify(nb::module_& m) {
  nb::class_<StepCost>(m, "StepCost", "What a step costs, at one moment, in milliseconds.")
      .def(nb::new_(&make_cost), nb::kw_only(), "sizes"_a = std::vector<std::int32_t>{},
           "times_ms"_a = std::vector<double>{}, "slope_ms"_a = 0.0, "sampler_ms"_a = 0.0,
           "sampler_by_seqs"_a = std::vector<std::pair<std::int32_t, double>>{},
           "sizes: captured, rising; empty: not known. Raises InvalidField.")
      .def_ro("sizes", &StepCost::sizes)
      .def_ro("times_ms", &StepCost::times_ms)
      .def_ro("slope_ms", &StepCost::slope_ms)
      .def_ro("sampler_ms", &StepCost::sampler_ms)
      .def_ro("sampler_by_seqs", &StepCost::sampler_by_seqs)
      .def("time_ms", &StepCost::time_ms, "total"_a, "num_seqs"_a);
  nb::class_<VerifyChoice>(m, "VerifyChoice", "Rows of the step, what they should emit and cost, drafts per sequence.")
      .def_ro("total", &VerifyChoice::total)
      .def_ro("expected", &VerifyChoice::expected)
      .def_ro("time_ms", &VerifyChoice::time_ms)
      .def_ro("drafts", &VerifyChoice::drafts);
  m.def(
      "choose_drafts",
      [](const std::vector<std::int32_t>& num_drafts, const Confidences& confidences, const StepCost& cost,
         std::int32_t max_total) { return core::choose_drafts(rows_of(num_drafts, confidences), cost, max_total); },
      "num_drafts"_a, "confidences"_a, "cost"_a, "max_total"_a = std::numeric_limits<std::int32_t>::max());
  m.def(
      "drafts_for_total",
      [](const std::vector<std::int32_t>& num_drafts, const Confidences& confidences, std::int32_t total) {
        return core::drafts_for_total(rows_of(num_drafts, confidences), total);
      },
      "num_drafts"_a, "confidences"_a, "total"_a);
  nb::class_<CostModel>(m, "CostModel", "A profiled curve, corrected by what steps really took.")
      .def(nb::init<std::vector<std::int32_t>, std::vector<double>>(), "sizes"_a, "times_ms"_a)
      .def("add_step", &CostModel::add_step, "size"_a, "ms"_a)
      .def("add_sampler", &CostModel::add_sampler, "num_seqs"_a, "ms"_a)
      .def_prop_ro("slope_ms", &CostModel::slope_ms)
      .def("sampler_ms", &CostModel::sampler_ms, "num_seqs"_a)
      .def("snapshot", &CostModel::snapshot);
}

}  // namespace headrace::bind
