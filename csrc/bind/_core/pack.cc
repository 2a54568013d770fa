#include "core/pack.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "bind/_core/arrays.h"

namespace headrace::bind {

using namespace nanobind::literals;
using core::RowTable;

namespace {

// A plan seen through whatever Python object carries its arrays (the core's own StepPlan or a received copy). The
// arrays are held here, so the spans stay valid while this lives.
class PlanArrays {
 public:
  explicit PlanArrays(nb::handle plan) {
    if (nb::isinstance<core::StepPlan>(plan))
      look_into(nb::cast<const core::StepPlan&>(plan));
    else
      take_all(plan);
  }
  const core::PlanView& view() const { return view_; }

 private:
  void take_all(nb::handle plan) {
    view_.seq_ids = take<core::SeqId>(plan, "seq_ids");
    view_.num_scheduled = take<std::int32_t>(plan, "num_scheduled");
    view_.num_computed = take<std::int32_t>(plan, "num_computed");
    view_.num_drafts = take<std::int32_t>(plan, "num_drafts");
    view_.draft_tokens = take<std::int32_t>(plan, "draft_tokens");
    view_.samples = take<std::uint8_t>(plan, "samples");
    view_.fresh_slices = take<std::int32_t>(plan, "fresh_slices");
    view_.fresh_offsets = take<std::int32_t>(plan, "fresh_offsets");
    view_.fresh_tokens = take<std::int32_t>(plan, "fresh_tokens");
    view_.block_starts = take<std::int32_t>(plan, "block_starts");
    view_.block_offsets = take<std::int32_t>(plan, "block_offsets");
    view_.block_ids = take<std::int32_t>(plan, "block_ids");
    view_.dropped = take<core::SeqId>(plan, "dropped");
    // Only context-parallel ranks ask; they refuse MIXED, so a plan without a kind is not taken for a prompt step.
    std::uint8_t kind = 0;
    if (nb::hasattr(plan, "kind") && !nb::try_cast(plan.attr("kind"), kind))
      throw core::InvalidField("kind", "must be a number of StepKind");
    view_.kind = static_cast<core::StepKind>(kind);
  }

  // The core's own plan needs no arrays; the caller holds it.
  void look_into(const core::StepPlan& plan) {
    view_ = {plan.seq_ids,       plan.num_scheduled, plan.num_computed,  plan.num_drafts,   plan.draft_tokens,
             plan.samples,       plan.fresh_slices,  plan.fresh_offsets, plan.fresh_tokens, plan.block_starts,
             plan.block_offsets, plan.block_ids,     plan.dropped,       plan.kind};
  }

  template <typename T>
  std::span<const T> take(nb::handle plan, const char* name) {
    nb::object attribute = plan.attr(name);
    InArray<T> array;
    // Without conversion: it would hide a wrong dtype, and wrap numbers that do not fit.
    if (!nb::try_cast(attribute, array, false))
      throw core::InvalidField(name, "must be a contiguous one-dimensional array of the documented dtype");
    held_.push_back(nb::cast(array));
    return {array.data(), array.shape(0)};
  }
  core::PlanView view_;
  std::vector<nb::object> held_;
};

// The caller's arrays to fill, held while this lives.
class BufferArrays {
 public:
  explicit BufferArrays(nb::handle out) {
    buffers_.input_ids = take<std::int32_t>(out, "input_ids");
    buffers_.request_index = take<std::int32_t>(out, "request_index");
    buffers_.positions = take<std::int32_t>(out, "positions");
    buffers_.query_start_loc = take<std::int32_t>(out, "query_start_loc");
    buffers_.seq_lens = take<std::int32_t>(out, "seq_lens");
    buffers_.logits_indices = take<std::int32_t>(out, "logits_indices");
    buffers_.discard = take<std::uint8_t>(out, "discard");
    buffers_.prev_positions = take<std::int32_t>(out, "prev_positions");
    buffers_.slots = take<std::int32_t>(out, "slots");
    buffers_.block_tables = take<std::int32_t>(out, "block_tables");
    if (nb::hasattr(out, "gather_index")) buffers_.gather_index = take<std::int32_t>(out, "gather_index");
  }
  const core::PackBuffers& buffers() const { return buffers_; }

 private:
  template <typename T>
  std::span<T> take(nb::handle out, const char* name) {
    nb::object attribute = out.attr(name);
    OutArray<T> array;
    // Without conversion: what is written must land in the caller's memory, not in a converted copy.
    if (!nb::try_cast(attribute, array, false))
      throw core::InvalidField(name, "must be a writable contiguous array of the documented dtype");
    if (std::string_view(name) == "block_tables" && array.ndim() > 0)
      buffers_.max_blocks = static_cast<std::int32_t>(array.shape(array.ndim() - 1));
    held_.push_back(nb::cast(array));
    return as_span(array);
  }
  core::PackBuffers buffers_;
  std::vector<nb::object> held_;
};

void fill_unknown_ids(OutArray<core::Token> ids, InArray<std::int32_t> starts, InArray<std::int32_t> prev_positions,
                      InArray<core::Token> last_sampled) {
  if (starts.shape(0) != prev_positions.shape(0) + 1)
    throw core::InvalidField("query_start_loc", "must have one entry more than there are slices");
  for (std::size_t s = 0; s < prev_positions.shape(0); ++s) {
    if (starts(s) < 0 || starts(s) > starts(s + 1) || static_cast<std::size_t>(starts(s + 1)) > ids.size())
      throw core::InvalidField("query_start_loc", "must rise within the rows of input_ids");
  }
  core::fill_unknown(as_span(ids), as_span(starts), as_span(prev_positions), as_span(last_sampled));
}

}  // namespace

void bind_pack(nb::module_& m) {
  m.attr("UNKNOWN_TOKEN") = core::kUnknownToken;
  m.attr("NOTHING_DRAWN") = core::kNothingDrawn;
  m.def("fill_unknown_ids", &fill_unknown_ids, "input_ids"_a.noconvert(), "query_start_loc"_a.noconvert(),
        "prev_positions"_a.noconvert(), "last_sampled"_a.noconvert(),
        "Device-side correction, in place: the only thing a host cannot know when it packs a step while the one before "
        "is in flight is a sequence's newest token. input_ids (T,), query_start_loc (S+1,), prev_positions (S,), "
        "last_sampled (S_prev,), all int32. Raises InvalidField, changing nothing: a broken plan must never reach a "
        "model.");
  nb::class_<RowTable>(m, "RowTable", "The worker's rows: tokens and block tables of the sequences it holds.")
      .def(
          "__init__",
          [](RowTable* self, std::int32_t block_size, std::int32_t num_groups, std::int32_t cp_size,
             std::int32_t cp_rank) { new (self) RowTable(block_size, num_groups, {cp_size, cp_rank}); },
          "block_size"_a, "num_groups"_a, "cp_size"_a = 1, "cp_rank"_a = 0)
      .def(
          "apply", [](RowTable& self, nb::handle plan) { self.apply(PlanArrays(plan).view()); }, "plan"_a)
      .def(
          "sizes",
          [](const RowTable& self, nb::handle plan) {
            const PlanArrays arrays(plan);
            return std::pair(self.num_logits(arrays.view()), self.max_blocks(arrays.view()));
          },
          "plan"_a, "(logits rows, longest block table) of a plan already applied.")
      .def(
          "num_rows", [](const RowTable& self, nb::handle plan) { return self.num_rows(PlanArrays(plan).view()); },
          "plan"_a, "Rows this rank computes: the plan's tokens, but in a prompt step that ranks share.")
      .def(
          "pack",
          [](RowTable& self, nb::handle plan, nb::handle out) {
            const PlanArrays arrays(plan);
            const BufferArrays buffers(out);
            self.pack(arrays.view(), buffers.buffers());
          },
          "plan"_a, "out"_a, "Fills the arrays of a PackedBatch, which the caller owns.")
      .def(
          "take",
          [](RowTable& self, nb::handle plan, const nb::callable& room) {
            const PlanArrays arrays(plan);
            self.apply(arrays.view());
            nb::object batch = room(self.num_logits(arrays.view()), self.max_blocks(arrays.view()));
            self.pack(arrays.view(), BufferArrays(batch).buffers());
            return batch;
          },
          "plan"_a, "room"_a,
          "apply, sizes and pack in one: room(logits rows, longest block table) makes the batch that is returned.")
      .def(
          "append_each",
          [](RowTable& self, InArray<core::SeqId> ids, InArray<core::Token> tokens) {
            if (ids.shape(0) != tokens.shape(0)) throw core::InvalidField("tokens", "must be one for each of the ids");
            for (std::size_t i = 0; i < ids.shape(0); ++i) self.append(ids(i), as_span(tokens).subspan(i, 1));
          },
          "ids"_a.noconvert(), "tokens"_a.noconvert(), "One sampled token for each sequence.")
      .def(
          "append",
          [](RowTable& self, core::SeqId id, InArray<core::Token> tokens) { self.append(id, as_span(tokens)); }, "id"_a,
          "tokens"_a.noconvert())
      .def(
          "tokens",
          [](const RowTable& self, core::SeqId id) {
            const auto* tokens = self.tokens(id);
            if (!tokens) throw core::InvalidField("id", "no such row");
            return own(*tokens);
          },
          "id"_a)
      .def("clear", &RowTable::clear)
      .def("__len__", &RowTable::size);
}

}  // namespace headrace::bind
