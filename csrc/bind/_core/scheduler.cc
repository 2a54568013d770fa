#include "core/scheduler.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "bind/_core/arrays.h"

namespace headrace::bind {

using namespace nanobind::literals;
using core::CommitResult;
using core::Scheduler;
using core::Sequence;
using core::StepPlan;

namespace {

template <auto Member>
auto array_of() {
  return [](nb::handle self) {
    using Owner = std::conditional_t<std::is_same_v<decltype(Member), std::vector<core::SeqId> StepPlan::*> ||
                                         std::is_same_v<decltype(Member), std::vector<std::int32_t> StepPlan::*> ||
                                         std::is_same_v<decltype(Member), std::vector<std::uint8_t> StepPlan::*>,
                                     StepPlan, CommitResult>;
    return view_of(nb::cast<const Owner&>(self).*Member, self);
  };
}

// A number that must be one of the first `count` of an enumeration; a cast alone would wrap it.
template <typename Enum>
Enum enum_of(const char* field, int value, int count) {
  if (value < 0 || value >= count) throw core::InvalidField(field, "no such kind: " + std::to_string(value));
  return static_cast<Enum>(value);
}

std::unique_ptr<Scheduler> make_scheduler(
    std::int32_t num_blocks, std::int32_t block_size, const std::vector<std::tuple<int, std::int32_t>>& groups,
    bool prefix_caching, bool weak_hash, std::int32_t token_budget, std::int32_t input_budget, std::int32_t draft_slots,
    std::int32_t lookahead, std::int32_t max_seqs, std::int32_t max_model_len, std::int32_t long_prefill_threshold,
    std::int32_t watermark_blocks, bool chunked_prefill, bool full_sequence_must_fit, bool priority, int role,
    std::int32_t cp_size, std::int32_t min_slice, std::int32_t max_sum_keys, bool stop_preempted,
    const std::tuple<double, double, double>& prefill_cost, std::int32_t seal_tokens) {
  core::SchedulerConfig config;
  config.num_blocks = num_blocks, config.block_size = block_size, config.prefix_caching = prefix_caching;
  config.hash = weak_hash ? core::HashKind::kWeakForTests : core::HashKind::kSha256Cbor;
  config.seal_tokens = seal_tokens;
  config.groups.clear();
  for (const auto& [kind, window] : groups)
    config.groups.push_back({enum_of<core::GroupKind>("groups", kind, 2), window});
  config.limits = {token_budget,
                   input_budget,
                   draft_slots,
                   lookahead,
                   max_seqs,
                   max_model_len,
                   long_prefill_threshold,
                   watermark_blocks,
                   chunked_prefill,
                   full_sequence_must_fit,
                   priority,
                   enum_of<core::Role>("role", role, 4),
                   cp_size,
                   min_slice,
                   max_sum_keys,
                   stop_preempted,
                   std::apply([](auto... ns) { return core::PrefillCost{ns...}; }, prefill_cost)};
  return std::make_unique<Scheduler>(std::move(config));
}

void add(Scheduler& self, core::SeqId id, InArray<core::Token> prompt, std::int32_t max_tokens, std::int32_t min_tokens,
         const std::vector<core::Token>& eos_ids, const std::vector<core::Token>& stop_ids, bool ignore_eos,
         bool reads_cache, bool ready, std::int64_t priority, double arrival, const core::ExtraKeys& keys,
         const std::vector<core::Token>& outputs, const std::vector<std::int32_t>& checkpoints) {
  core::SequenceSpec spec;
  spec.id = id, spec.prompt = as_vector(prompt), spec.max_tokens = max_tokens, spec.min_tokens = min_tokens;
  spec.eos_ids = eos_ids, spec.stop_ids = stop_ids, spec.ignore_eos = ignore_eos;
  spec.reads_cache = reads_cache, spec.ready = ready, spec.priority = priority, spec.arrival = arrival;
  spec.keys = keys, spec.outputs = outputs, spec.checkpoints = checkpoints;
  self.add(std::move(spec));
}

// The child asks for what its parent asked for.
void fork(Scheduler& self, core::SeqId parent, core::SeqId id, InArray<core::Token> prompt,
          const std::vector<core::Token>& outputs) {
  const Sequence* seq = self.find(parent);
  core::SequenceSpec spec = seq ? seq->spec : core::SequenceSpec{};
  spec.id = id, spec.prompt = as_vector(prompt), spec.outputs = outputs;
  self.fork(parent, std::move(spec));
}

nb::object inspect(const Scheduler& self, core::SeqId id) {
  const Sequence* seq = self.find(id);
  if (!seq) return nb::none();
  nb::dict out;
  out["num_tokens"] = seq->ledger.num_tokens(), out["num_computed"] = seq->ledger.num_computed();
  out["num_in_flight"] = seq->ledger.num_in_flight(), out["num_promised"] = seq->ledger.num_promised();
  out["num_stale"] = seq->ledger.num_stale(), out["num_preemptions"] = seq->num_preemptions;
  out["num_cached_tokens"] = seq->num_cached_tokens, out["running"] = seq->status == core::Status::kRunning;
  out["blocks"] = seq->blocks, out["tokens"] = seq->tokens;
  return out;
}

// The slices that somebody wants to hear of. One list of plain numbers costs less than an array per field.
nb::list news_of(const CommitResult& result) {
  nb::list out;
  for (std::size_t i = 0; i < result.seq_ids.size(); ++i) {
    const std::int32_t begin = result.offsets[i], end = result.offsets[i + 1];
    if (begin == end && !result.finishes[i]) continue;
    nb::list tokens;
    for (std::int32_t k = begin; k < end; ++k) tokens.append(result.tokens[k]);
    out.append(nb::make_tuple(i, result.seq_ids[i], result.finishes[i], tokens));
  }
  return out;
}

void bind_plan(nb::module_& m) {
  nb::class_<StepPlan> plan(m, "StepPlan", "One step's plan as flat arrays; see contract/plan.py for shapes.");
  plan.def_ro("step", &StepPlan::step)
      .def_prop_ro("kind", [](const StepPlan& p) { return static_cast<int>(p.kind); })
      .def_ro("time_budget_ns", &StepPlan::time_budget_ns)
      .def_ro("token_budget_left", &StepPlan::token_budget_left)
      .def_ro("input_budget_left", &StepPlan::input_budget_left)
      .def_ro("num_free_blocks", &StepPlan::num_free_blocks)
      .def_ro("num_running", &StepPlan::num_running)
      .def_ro("num_waiting", &StepPlan::num_waiting)
      .def_prop_ro("total_tokens", &StepPlan::total_tokens)
      .def_prop_ro("num_fresh", [](const StepPlan& p) { return p.fresh_slices.size(); })
      .def_prop_ro("sums", [](const StepPlan& p) {
        const core::StepSums sums = p.sums();
        return std::make_tuple(p.seq_ids.size(), sums.tokens, sums.decoding, sums.attended);
      });
#define HEADRACE_ARRAY(name) plan.def_prop_ro(#name, array_of<&StepPlan::name>())
  HEADRACE_ARRAY(seq_ids), HEADRACE_ARRAY(num_scheduled), HEADRACE_ARRAY(num_computed), HEADRACE_ARRAY(num_tokens);
  HEADRACE_ARRAY(num_drafts), HEADRACE_ARRAY(samples), HEADRACE_ARRAY(clips), HEADRACE_ARRAY(draft_tokens);
  HEADRACE_ARRAY(fresh_slices), HEADRACE_ARRAY(fresh_cached), HEADRACE_ARRAY(fresh_offsets);
  HEADRACE_ARRAY(fresh_tokens), HEADRACE_ARRAY(block_starts), HEADRACE_ARRAY(block_offsets);
  HEADRACE_ARRAY(block_ids), HEADRACE_ARRAY(dropped), HEADRACE_ARRAY(clone_states), HEADRACE_ARRAY(clone_blocks);
  HEADRACE_ARRAY(zero_states), HEADRACE_ARRAY(note_seqs), HEADRACE_ARRAY(note_codes), HEADRACE_ARRAY(note_values);
#undef HEADRACE_ARRAY
  nb::class_<CommitResult>(m, "CommitResult", "What became of each slice; offsets cut tokens into rows.")
      .def_prop_ro("seq_ids", array_of<&CommitResult::seq_ids>())
      .def_prop_ro("outcomes", array_of<&CommitResult::outcomes>())
      .def_prop_ro("finishes", array_of<&CommitResult::finishes>())
      .def_prop_ro("offsets", array_of<&CommitResult::offsets>())
      .def_prop_ro("tokens", array_of<&CommitResult::tokens>())
      .def_ro("gone_tokens", &CommitResult::gone_tokens)
      .def_ro("dropped_tokens", &CommitResult::dropped_tokens)
      .def("news", &news_of, "(slice, sequence, Finish, tokens) of each slice with tokens or an end, in plan order.");
}

}  // namespace

void bind_scheduler(nb::module_& m) {
  nb::exception<core::InvalidField>(m, "InvalidField", PyExc_ValueError);
  bind_plan(m);
  nb::class_<Scheduler>(m, "Scheduler", "Sequences, queues and blocks; plans steps and takes their results.")
      .def(nb::new_(&make_scheduler), nb::kw_only(), "num_blocks"_a, "block_size"_a = 32,
           "groups"_a = std::vector<std::tuple<int, std::int32_t>>{{0, 0}}, "prefix_caching"_a = true,
           "weak_hash"_a = false, "token_budget"_a = 512, "input_budget"_a = 0, "draft_slots"_a = 0, "lookahead"_a = 0,
           "max_seqs"_a = 64, "max_model_len"_a = 2048, "long_prefill_threshold"_a = 0, "watermark_blocks"_a = 0,
           "chunked_prefill"_a = true, "full_sequence_must_fit"_a = true, "priority"_a = false, "role"_a = 0,
           "cp_size"_a = 1, "min_slice"_a = 1, "max_sum_keys"_a = 0, "stop_preempted"_a = false,
           "prefill_cost"_a = std::make_tuple(0.0, 0.0, 0.0), "seal_tokens"_a = 0,
           "groups: (kind, window) pairs. input_budget 0: no limit of its own. Raises InvalidField.")
      .def("add", &add, "id"_a, "prompt"_a.noconvert(), nb::kw_only(), "max_tokens"_a = 16, "min_tokens"_a = 0,
           "eos_ids"_a = std::vector<core::Token>{}, "stop_ids"_a = std::vector<core::Token>{}, "ignore_eos"_a = false,
           "reads_cache"_a = true, "ready"_a = true, "priority"_a = 0, "arrival"_a = 0.0, "keys"_a = core::ExtraKeys{},
           "outputs"_a = std::vector<core::Token>{}, "checkpoints"_a = std::vector<std::int32_t>{},
           "Raises InvalidField naming the field; nothing is changed then.")
      .def("fork", &fork, "parent"_a, "id"_a, "prompt"_a.noconvert(), "outputs"_a,
           "A sequence that goes on from what `parent` has computed. Raises InvalidField.")
      .def("place", &Scheduler::place, "id"_a, "from_cache"_a = false,
           "Blocks for a sequence prefilled elsewhere; fill them, then set_ready. False while it "
           "could not run to its end beside the others. "
           "from_cache: what the pool does not hold of it is computed in decode steps.")
      .def("set_confidences", &Scheduler::set_confidences, "id"_a, "confidences"_a)
      .def("set_cost", &Scheduler::set_cost, "cost"_a)
      .def("prefill_possible", &Scheduler::prefill_possible, "Whether a PREFILL step would schedule something now.")
      .def(
          "take_ignored",
          [](Scheduler& self) {
            std::vector<std::pair<core::SeqId, int>> out;
            for (const auto& [id, reason] : self.take_ignored()) out.emplace_back(id, static_cast<int>(reason));
            return out;
          },
          "(sequence, Ignored) pairs: what plans have ended by themselves since the last call.")
      .def("finish", &Scheduler::finish, "id"_a)
      .def("set_ready", &Scheduler::set_ready, "id"_a, "ready"_a)
      .def("set_drafts", &Scheduler::set_drafts, "id"_a, "drafts"_a)
      .def(
          "plan",
          [](Scheduler& self, int kind, std::int64_t time_budget_ns, bool companion) {
            const auto step_kind = enum_of<core::StepKind>("kind", kind, 3);
            nb::gil_scoped_release release;
            return self.plan(step_kind, {time_budget_ns, companion});
          },
          "kind"_a = 0, nb::kw_only(), "time_budget_ns"_a = 0, "companion"_a = false)
      .def(
          "commit",
          [](Scheduler& self, core::StepId step, InArray<std::int32_t> num_valid, InArray<std::int32_t> offsets,
             InArray<core::Token> tokens) {
            nb::gil_scoped_release release;
            return self.commit(step, as_span(num_valid), as_span(offsets), as_span(tokens));
          },
          "step"_a, "num_valid"_a.noconvert(), "offsets"_a.noconvert(), "tokens"_a.noconvert(),
          "int32 arrays, slices in plan order. Raises InvalidField, changing nothing, when they do not fit the step.")
      .def("fail", &Scheduler::fail, "step"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("reset_prefix_cache", &Scheduler::reset_prefix_cache, "reset_running"_a = false,
           nb::call_guard<nb::gil_scoped_release>())
      .def(
          "take_sealed",
          [](Scheduler& self) {
            std::vector<std::tuple<core::SeqId, std::int32_t, std::vector<core::Token>, std::vector<core::BlockId>>>
                out;
            for (core::Sealed& s : self.take_sealed())
              out.emplace_back(s.seq, s.index, std::move(s.tokens), std::move(s.blocks));
            return out;
          },
          "(sequence, index, tokens, blocks group after group) of stretches whose KV has become final; true until a "
          "plan.")
      .def("cached_tokens", &Scheduler::cached_tokens, "id"_a, "Tokens of a sequence that the pool holds now.")
      .def(
          "import_prefix",
          [](Scheduler& self, core::SeqId id, std::int32_t num_tokens, std::int32_t first) {
            std::vector<std::tuple<std::int32_t, std::int32_t, core::BlockId>> out;
            for (const core::ImportedBlock& b : self.import_prefix(id, num_tokens, first))
              out.emplace_back(b.group, b.position, b.block);
            return out;
          },
          "id"_a, "num_tokens"_a, "first"_a = 0,
          "(group, position in blocks, block) to fill before any step planned later. Empty: nothing to fill.")
      .def("inspect", &inspect, "id"_a, "A sequence's counts and blocks as a dict, for tests and explanations.")
      .def(
          "ref_counts",
          [](const Scheduler& s) {
            std::vector<std::int32_t> counts(s.config().num_blocks);
            for (core::BlockId b = 0; b < s.config().num_blocks; ++b) counts[b] = s.allocator().pool().ref_count(b);
            return own(std::move(counts));
          },
          "References per block, the null block included; for tests and explanations.")
      .def(
          "free_queue", [](const Scheduler& s) { return own(s.allocator().pool().free_queue()); },
          "Free blocks, the next to be handed out first; for tests and explanations.")
      .def("prompted_ids", &Scheduler::prompted_ids)
      .def("running_ids", &Scheduler::running_ids)
      .def("waiting_ids", &Scheduler::waiting_ids)
      .def_prop_ro("num_waiting", &Scheduler::num_waiting)
      .def_prop_ro("num_running", &Scheduler::num_running)
      .def_prop_ro("num_prompted", &Scheduler::num_prompted)
      .def_prop_ro("num_unfinished", &Scheduler::num_unfinished)
      .def_prop_ro("num_steps_in_flight", &Scheduler::num_steps_in_flight)
      .def_prop_ro("num_blocks", [](const Scheduler& s) { return s.allocator().pool().num_blocks(); })
      .def_prop_ro("num_free_blocks", [](const Scheduler& s) { return s.allocator().pool().num_free(); })
      .def_prop_ro("num_used_blocks", [](const Scheduler& s) { return s.allocator().pool().num_used(); })
      .def_prop_ro("capacity_tokens", [](const Scheduler& s) { return s.capacity_tokens(); })
      .def_prop_ro("prefix_queries", [](const Scheduler& s) { return s.stats().prefix_queries; })
      .def_prop_ro("prefix_hits", [](const Scheduler& s) { return s.stats().prefix_hits; })
      .def_prop_ro("num_preemptions", [](const Scheduler& s) { return s.stats().preemptions; });
}

}  // namespace headrace::bind
