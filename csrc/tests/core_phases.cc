// PREFILL and DECODE: every limit of a slice by example, decode order and victims, forks, verdicts, hand-over, and
// random histories of whole engines.
#include <random>

#include "core/scheduler.h"
#include "tests/core_driver.h"
#include "tests/core_shadow.h"

using namespace headrace::testing;

namespace {

using Ids = std::vector<SeqId>;
using Ints = std::vector<std::int32_t>;
constexpr StepKind kPrefill = StepKind::kPrefill, kDecode = StepKind::kDecode;

SchedulerConfig phased(Role role = Role::kNormal, std::int32_t num_blocks = 65, std::int32_t budget = 16) {
  SchedulerConfig config;
  config.num_blocks = num_blocks, config.block_size = 4, config.prefix_caching = false;
  config.limits.token_budget = budget, config.limits.max_model_len = 200;
  config.limits.role = role, config.limits.stop_preempted = role == Role::kCompletion;
  return config;
}

SequenceSpec spec_of(SeqId id, std::vector<Token> prompt, std::int32_t max_tokens = 16) {
  SequenceSpec spec;
  spec.id = id, spec.prompt = std::move(prompt), spec.max_tokens = max_tokens;
  return spec;
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidField& error) {
    const std::string text = error.what();
    return text.substr(0, text.find(':'));
  }
  return "nothing";
}

std::string refused(const SchedulerConfig& config) {
  return refusal([&] { Scheduler scheduler(config); });
}

void step(Driver& driver, StepKind kind) {
  CHECK(driver.plan(kind));
  driver.commit();
}

Clip last_clip(const Driver& driver) { return static_cast<Clip>(driver.last.clips.back()); }

}  // namespace

TEST(phases_d_e1) {
  Driver driver(phased());
  driver.add(1, prompt_of(6), 8), driver.add(2, prompt_of(3, 50), 8);
  CHECK(driver.plan(kPrefill));
  CHECK_EQ(driver.last.num_scheduled, (Ints{6, 3}));
  CHECK_EQ(driver.last.total_tokens(), 9);
  driver.commit();
  CHECK_EQ(driver.ledger(1).num_computed(), 6), CHECK_EQ(driver.ledger(1).num_tokens(), 7);
  CHECK_EQ(driver.ledger(2).num_computed(), 3), CHECK_EQ(driver.ledger(2).num_tokens(), 4);
  CHECK(driver.plan(kDecode));
  CHECK_EQ(driver.last.num_scheduled, (Ints{1, 1}));
  CHECK_EQ(driver.last.num_computed, (Ints{6, 3}));  // key lengths 7 and 4
  driver.commit();
  CHECK_EQ(driver.ledger(1).num_computed(), 7), CHECK_EQ(driver.ledger(1).num_tokens(), 8);
  CHECK_EQ(driver.ledger(2).num_computed(), 4), CHECK_EQ(driver.ledger(2).num_tokens(), 5);
}

TEST(phases_roles_plan_their_kinds_only) {
  const auto field = [](Role role, StepKind kind) {
    Scheduler scheduler(phased(role));
    return refusal([&] { scheduler.plan(kind); });
  };
  CHECK_EQ(field(Role::kUnified, kPrefill), std::string("kind")),
      CHECK_EQ(field(Role::kUnified, kDecode), std::string("kind"));
  CHECK_EQ(field(Role::kNormal, StepKind::kMixed), std::string("kind"));
  CHECK_EQ(field(Role::kPrompt, kDecode), std::string("kind")),
      CHECK_EQ(field(Role::kCompletion, kPrefill), std::string("kind"));
  CHECK_EQ(field(Role::kNormal, kPrefill), std::string("nothing")),
      CHECK_EQ(field(Role::kNormal, kDecode), std::string("nothing"));
}

TEST(phases_configurations_that_cannot_work_are_named) {
  SchedulerConfig config = phased(Role::kCompletion);
  config.limits.stop_preempted = false;  // it would have to recompute
  CHECK_EQ(refused(config), std::string("stop_preempted"));
  config = phased(), config.limits.cp_size = 16;
  CHECK_EQ(refused(config), std::string("token_budget"));
  config = phased(), config.limits.min_slice = 17;
  CHECK_EQ(refused(config), std::string("min_slice"));
  config = phased(), config.limits.prefill_cost.per_token_ns = -1;
  CHECK_EQ(refused(config), std::string("prefill_cost"));
  for (const auto knob : {&Limits::cp_size, &Limits::min_slice, &Limits::max_sum_keys}) {
    config = phased(Role::kUnified), config.limits.*knob = 2;
    CHECK(refused(config) != "nothing");
    config = phased(), config.limits.*knob = -1;
    CHECK(refused(config) != "nothing");
  }
}

TEST(phases_a_chunked_slice_ends_the_step_in_normal_only) {
  for (const Role role : {Role::kNormal, Role::kPrompt}) {
    Driver driver(phased(role));
    SequenceSpec spec = spec_of(1, prompt_of(12));
    spec.checkpoints = {5};
    driver.core.add(spec);
    driver.add(2, prompt_of(3, 50), 4);
    CHECK(driver.plan(kPrefill));
    CHECK_EQ(driver.last.num_scheduled, (role == Role::kNormal ? Ints{5} : Ints{5, 3}));
    CHECK_EQ(static_cast<Clip>(driver.last.clips[0]), Clip::kCheckpoint);
    CHECK_EQ(driver.last.samples[0], 0);
    driver.commit();
    CHECK_EQ(driver.core.waiting_ids().front(), 1);  // it goes on first
    step(driver, kPrefill);
    CHECK_EQ(driver.scheduled(1), 7);
  }
}

TEST(phases_checkpoints_are_checked) {
  const auto field = [](Ints checkpoints) {
    Scheduler scheduler(phased());
    SequenceSpec spec = spec_of(1, prompt_of(10));
    spec.keys.media = {{"image", 4, 3}};
    spec.checkpoints = std::move(checkpoints);
    return refusal([&] { scheduler.add(spec); });
  };
  for (const Ints& bad : {Ints{0}, Ints{10}, Ints{3, 3}, Ints{8, 3}, Ints{5}, Ints{-1}})
    CHECK_EQ(field(bad), std::string("checkpoints"));
  CHECK_EQ(field({4, 7, 9}), std::string("nothing"));
}

TEST(phases_context_parallel_slices_are_aligned) {
  SchedulerConfig config = phased();
  config.limits.cp_size = 2, config.limits.token_budget = 18;
  Driver driver(config);
  driver.add(1, prompt_of(6), 4), driver.add(2, prompt_of(30, 50), 4);
  CHECK(driver.plan(kPrefill));
  CHECK_EQ(driver.last.num_scheduled, (Ints{6, 8}));  // 6 take the room of 8; of the 10 left 8 can be used
  CHECK_EQ(driver.last.token_budget_left, 2);
  CHECK_EQ(last_clip(driver), Clip::kTokenBudget);
}

TEST(phases_an_image_is_never_cut) {
  Driver driver(phased());
  SequenceSpec spec = spec_of(1, prompt_of(40));
  spec.keys.media = {{"a", 10, 12}, {"b", 30, 5}};
  driver.core.add(spec);
  for (const std::int32_t q : {10, 16, 14}) {
    CHECK(driver.plan(kPrefill));
    CHECK_EQ(driver.last.num_scheduled, (Ints{q}));
    CHECK_EQ(last_clip(driver), q == 10 ? Clip::kMedia : q == 16 ? Clip::kTokenBudget : Clip::kWhole);
    driver.commit();
  }
}

TEST(phases_least_slice) {
  SchedulerConfig config = phased();
  config.limits.min_slice = 4;
  Driver driver(config);
  driver.add(1, prompt_of(13), 4), driver.add(2, prompt_of(10, 50), 4), driver.add(3, prompt_of(2, 90), 4);
  CHECK(driver.plan(kPrefill));
  CHECK_EQ(driver.last.num_scheduled, (Ints{13}));  // 3 of 10 are not worth it, and nobody overtakes
  driver.commit();
  CHECK(driver.plan(kPrefill));
  CHECK_EQ(driver.last.num_scheduled, (Ints{10, 2}));  // the whole of 2 is
}

TEST(phases_sum_of_keys) {
  SchedulerConfig config = phased();
  config.limits.max_sum_keys = 20, config.limits.token_budget = 12;
  Driver driver(config);
  driver.add(1, prompt_of(16), 4), driver.add(2, prompt_of(9, 50), 4);
  step(driver, kPrefill);
  CHECK_EQ(driver.scheduled(1), 12);
  CHECK(driver.plan(kPrefill));
  CHECK_EQ(driver.last.num_scheduled, (Ints{4, 4}));  // 16 keys, and 4 more
  CHECK_EQ(last_clip(driver), Clip::kKeys);
}

TEST(phases_time_budget) {
  SchedulerConfig config = phased();
  config.limits.prefill_cost = {100, 10, 2};
  Driver driver(config);
  driver.add(1, prompt_of(14), 4);
  // 100 + 10 q + q^2 within 300: q = 10 takes 200 of the 200 left, and 4 more after 10 keys take 40 + 80 + 16.
  CHECK(driver.plan(kPrefill, {300, false}));
  CHECK_EQ(driver.last.num_scheduled, (Ints{10}));
  CHECK_EQ(last_clip(driver), Clip::kTime);
  driver.commit();
  CHECK(driver.plan(kPrefill, {235, false}));
  CHECK_EQ(driver.last.num_scheduled, (Ints{3}));
  driver.commit();
  CHECK(driver.plan(kPrefill, {1, false}));  // slow, but never stopped
  CHECK_EQ(driver.last.num_scheduled, (Ints{1}));
  CHECK_EQ(refusal([&] { driver.core.plan(kPrefill, {-1, false}); }), std::string("time_budget_ns"));
}

TEST(phases_blocks_cut_a_slice) {
  SchedulerConfig config = phased(Role::kNormal, 8);
  config.limits.full_sequence_must_fit = false;
  Driver driver(config);
  driver.add(1, prompt_of(10), 4);
  step(driver, kPrefill);
  driver.add(2, prompt_of(20, 50), 4);
  CHECK(driver.plan(kPrefill));
  CHECK_EQ(driver.last.num_scheduled, (Ints{16}));
  driver.commit();
  CHECK(!driver.plan(kPrefill));  // all 7 blocks are held
  CHECK(!driver.core.prefill_possible());
  driver.run_dry_phased();
}

TEST(phases_whole_sequences_must_fit) {
  Driver driver(phased(Role::kNormal, 8));
  driver.add(1, prompt_of(10), 4);
  step(driver, kPrefill);
  driver.add(2, prompt_of(20, 50), 4);
  CHECK(!driver.plan(kPrefill));
  CHECK_EQ(driver.last.note_codes.back(), static_cast<std::uint8_t>(Note::kNoBlocks));
  driver.run_dry_phased();
}

TEST(phases_half_prefilled_sequences_cannot_block_each_other_for_ever) {
  SchedulerConfig config = phased(Role::kPrompt, 9, 8);
  config.limits.full_sequence_must_fit = false, config.limits.priority = true;
  Driver driver(config);
  driver.add(1, prompt_of(28), 4, 5);
  step(driver, kPrefill), step(driver, kPrefill), step(driver, kPrefill);  // 24 tokens in 6 blocks of 8
  driver.add(2, prompt_of(28, 50), 4, 1);                                  // goes first
  step(driver, kPrefill);
  CHECK_EQ(driver.scheduled(2), 8);
  CHECK(driver.plan(kPrefill));
  CHECK_EQ(driver.scheduled(2), 8);
  CHECK_EQ(driver.core.find(1)->num_preemptions, 1);
  CHECK_EQ(driver.core.waiting_ids(), (Ids{2, 1}));
}

TEST(phases_order_of_decoding) {
  // Output lengths [2, 7, 5]: sorted [7, 5, 2]; the one with 2 is served first, the one with 7 is the first victim.
  Driver driver(phased(Role::kNormal, 15));
  driver.add(2, prompt_of(10), 30);
  step(driver, kPrefill), step(driver, kDecode), step(driver, kDecode);
  driver.add(3, prompt_of(10, 50), 30);
  step(driver, kPrefill), step(driver, kDecode), step(driver, kDecode), step(driver, kDecode);
  driver.add(1, prompt_of(10, 90), 30);
  step(driver, kPrefill), step(driver, kDecode);
  const auto outputs = [&](SeqId id) { return driver.core.find(id)->num_outputs(); };
  CHECK_EQ((Ints{outputs(1), outputs(2), outputs(3)}), (Ints{2, 7, 5}));
  CHECK(driver.plan(kDecode));
  CHECK_EQ(driver.last.seq_ids, (Ids{2, 3, 1}));  // total length descending
  driver.commit();
  while (driver.core.stats().preemptions == 0) step(driver, kDecode);
  CHECK_EQ(driver.core.waiting_ids(), (Ids{2}));
  CHECK(driver.scheduled(1) == 1 && driver.scheduled(3) == 1);
  driver.run_dry_phased();
}

TEST(phases_a_lone_sequence_preempts_itself) {
  SchedulerConfig config = phased(Role::kNormal, 7, 8);
  config.limits.full_sequence_must_fit = false;
  Driver driver(config);
  driver.add(1, prompt_of(8), 12);
  step(driver, kPrefill);
  driver.add(2, prompt_of(18, 50), 4);
  step(driver, kPrefill), step(driver, kPrefill);  // 16 of 18: all 6 blocks are held
  CHECK(!driver.plan(kDecode));
  CHECK_EQ(driver.core.waiting_ids(), (Ids{1, 2}));
  CHECK_EQ(driver.core.find(1)->num_preemptions, 1);
  CHECK(driver.core.prefill_possible());
  driver.run_dry_phased();
}

TEST(phases_what_can_never_be_served_is_ended_with_a_reason) {
  SchedulerConfig config = phased(Role::kNormal, 9);
  config.limits.max_model_len = 60, config.limits.max_sum_keys = 25;
  Driver driver(config);
  driver.add(1, prompt_of(60), 4);   // no room to generate
  driver.add(2, prompt_of(20), 30);  // 13 blocks of 8
  driver.add(3, prompt_of(26), 4);   // more keys than a step may have
  SequenceSpec image = spec_of(4, prompt_of(20), 4);
  image.keys.media = {{"large", 1, 17}};  // longer than a slice
  driver.core.add(image);
  driver.add(5, prompt_of(5), 2);
  CHECK(driver.plan(kDecode) == false);  // decoding sweeps as well, from anywhere in waiting
  const auto ignored = driver.core.take_ignored();
  CHECK_EQ(ignored.size(), 4u);
  for (const auto& [id, reason] : ignored) CHECK(reason == (id == 1 ? Ignored::kTooLong : Ignored::kNeverFits));
  CHECK(driver.core.take_ignored().empty());
  CHECK_EQ(driver.core.waiting_ids(), (Ids{5}));
  driver.run_dry_phased();
}

TEST(phases_a_fork_clones_its_half_written_block) {
  Driver driver(phased());
  driver.add(1, prompt_of(6), 8);
  step(driver, kPrefill);
  std::vector<Token> prompt = prompt_of(6);
  prompt.push_back(7);
  driver.core.fork(1, spec_of(2, prompt, 8));
  driver.check();
  CHECK_EQ(driver.core.find(2)->blocks, driver.core.find(1)->blocks);
  CHECK(driver.plan(kDecode));
  const auto& mine = driver.core.find(1)->blocks[0];
  const auto& its = driver.core.find(2)->blocks[0];
  CHECK_EQ(its[0], mine[0]);
  CHECK_EQ(driver.last.clone_blocks, (std::vector<std::int32_t>{mine[1], its[1]}));
  CHECK(mine[1] != its[1]);
  CHECK_EQ(driver.last.fresh_slices, (Ints{1}));  // the worker learns all of it
  driver.commit();
  driver.run_dry_phased();
}

TEST(phases_a_fork_at_a_block_s_end_clones_nothing) {
  Driver driver(phased());
  driver.add(1, prompt_of(8), 8);
  step(driver, kPrefill);
  std::vector<Token> prompt = prompt_of(8);
  prompt.push_back(7);
  driver.core.fork(1, spec_of(2, prompt, 8));
  driver.core.finish(1);
  driver.check();
  CHECK(driver.plan(kDecode));
  CHECK(driver.last.clone_blocks.empty());
}

TEST(phases_a_fork_may_compute_the_last_row_again) {
  for (const int length : {2, 6, 8, 9}) {
    Driver driver(phased());
    driver.add(1, prompt_of(length), 8);
    step(driver, kPrefill);
    driver.core.fork(1, spec_of(2, prompt_of(length), 8));
    driver.core.fork(1, spec_of(3, prompt_of(length), 8));
    driver.check();
    CHECK_EQ(driver.core.find(2)->ledger.num_computed(), length - 1);
    CHECK_EQ(driver.core.find(2)->num_outputs(), 0);
    CHECK(driver.plan(kDecode));
    CHECK_EQ(driver.last.seq_ids.size(), 3u);
    for (const std::int32_t q : driver.last.num_scheduled) CHECK_EQ(q, 1);
    CHECK_EQ(driver.last.clone_blocks.empty(), (length - 1) % 4 == 0);
    driver.commit();
    CHECK_EQ(driver.core.find(3)->num_outputs(), 1);
    driver.run_dry_phased();
  }
}

TEST(phases_a_fork_whose_parent_is_gone_keeps_the_block) {
  Driver driver(phased());
  driver.add(1, prompt_of(6), 8);
  step(driver, kPrefill);
  std::vector<Token> prompt = prompt_of(6);
  prompt.push_back(7);
  driver.core.fork(1, spec_of(2, prompt, 8));
  driver.core.finish(1);
  CHECK(driver.plan(kDecode));
  CHECK(driver.last.clone_blocks.empty());
}

TEST(phases_forks_are_checked) {
  Driver driver(phased());
  driver.add(1, prompt_of(6), 8);
  const auto field = [&](SeqId parent, SeqId id, std::vector<Token> prompt) {
    return refusal([&] { driver.core.fork(parent, spec_of(id, std::move(prompt))); });
  };
  CHECK_EQ(field(1, 2, prompt_of(7)), std::string("parent"));  // not prefilled yet
  CHECK(driver.plan(kPrefill));
  CHECK_EQ(field(1, 2, prompt_of(7)), std::string("parent"));  // in flight
  driver.commit();
  CHECK_EQ(field(3, 2, prompt_of(7)), std::string("parent"));
  CHECK_EQ(field(1, 1, prompt_of(7)), std::string("id"));
  CHECK_EQ(field(1, 2, prompt_of(8)), std::string("prompt"));
  CHECK_EQ(field(1, 2, prompt_of(5)), std::string("prompt"));
  CHECK_EQ(field(1, 2, prompt_of(7, 1)), std::string("prompt"));
  CHECK_EQ(driver.core.num_unfinished(), 1u);
}

TEST(phases_completion_takes_over_what_can_run_to_its_end) {
  Driver driver(phased(Role::kCompletion, 7));
  CHECK_EQ(refusal([&] { driver.core.add(spec_of(1, prompt_of(6))); }), std::string("outputs"));
  for (SeqId id : {1, 2}) {
    SequenceSpec spec = spec_of(id, prompt_of(6, 10 * id), 14);
    spec.outputs = {token_at(id, 6)};
    driver.core.add(spec);
    CHECK_EQ(driver.core.place(id), id == 1);  // five blocks each at the end: the second has to wait for the first
  }
  CHECK_EQ(driver.core.find(1)->blocks[0].size(), 2u);
  CHECK_EQ(refusal([&] { driver.core.place(1); }), std::string("id"));
  CHECK(!driver.plan(kDecode));  // its KV is still on its way
  driver.core.set_ready(1, true);
  step(driver, kDecode);
  CHECK_EQ(driver.last.num_computed, (Ints{6}));
  while (driver.core.num_running() == 1) {
    CHECK(!driver.core.place(2));
    step(driver, kDecode);
  }
  CHECK(driver.core.place(2));
  driver.core.set_ready(2, true);
  while (driver.plan(kDecode)) driver.commit();
  CHECK(driver.core.take_ignored().empty());
  CHECK_EQ(driver.core.stats().preemptions, 0);
  CHECK_EQ(driver.core.num_unfinished(), 0u);
  CHECK_EQ(driver.core.allocator().pool().num_used(), 0);
}

TEST(phases_completion_places_no_more_than_may_run_at_once) {
  SchedulerConfig config = phased(Role::kCompletion, 60);
  config.limits.max_seqs = 2;
  Driver driver(config);
  for (SeqId id : {1, 2, 3}) {
    SequenceSpec spec = spec_of(id, prompt_of(6, 10 * id), 4);
    spec.outputs = {token_at(id, 6)};
    driver.core.add(spec);
    CHECK_EQ(driver.core.place(id), id < 3);
  }
  driver.core.finish(1);
  CHECK(driver.core.place(3));
}

TEST(phases_what_came_without_all_its_kv_computes_the_rest_beside_others) {
  SchedulerConfig config = phased(Role::kCompletion, 40, 6);
  config.prefix_caching = true;
  Driver driver(config);
  SequenceSpec whole = spec_of(1, prompt_of(6), 12);
  whole.outputs = {token_at(1, 6)};
  driver.core.add(whole);
  CHECK(driver.core.place(1));
  driver.core.set_ready(1, true);
  step(driver, kDecode);
  SequenceSpec partly = spec_of(2, prompt_of(16, 50), 5);
  partly.outputs = {token_at(2, 16)};
  driver.core.add(partly);
  CHECK_EQ(driver.core.import_prefix(2, 8).size(), 2u);
  CHECK_EQ(driver.core.cached_tokens(2), 8);
  CHECK(driver.core.place(2, true));
  CHECK_EQ(driver.core.find(2)->ledger.num_computed(), 8);
  CHECK_EQ(driver.core.find(2)->blocks[0].size(), 4u);  // as many as a whole one gets
  step(driver, kDecode);
  CHECK_EQ(driver.scheduled(2), 0);  // not filled yet
  driver.core.set_ready(2, true);
  for (const std::int32_t computed : {5, 4}) {
    step(driver, kDecode);
    CHECK_EQ(driver.scheduled(1), 1);
    CHECK_EQ(driver.scheduled(2), computed);
  }
  CHECK_EQ(driver.core.find(2)->tokens.size(), 18u);  // the second of them drew
  while (driver.plan(kDecode)) driver.commit();
  CHECK_EQ(driver.core.num_unfinished(), 0u);
  CHECK_EQ(driver.core.allocator().pool().num_used(), 0);
}

TEST(phases_a_failure_takes_along_who_was_placed_upon_its_blocks) {
  SchedulerConfig config = phased(Role::kCompletion, 40, 6);
  config.prefix_caching = true;
  Driver driver(config);
  for (SeqId id : {1, 2}) {
    SequenceSpec spec = spec_of(id, prompt_of(16, 50), 5);
    spec.outputs = {token_at(id, 16)};
    driver.core.add(spec);
  }
  CHECK(driver.core.place(1, true));
  driver.core.set_ready(1, true);
  CHECK(driver.plan(kDecode));
  CHECK_EQ(driver.scheduled(1), 6);
  CHECK(driver.core.place(2, true));
  CHECK_EQ(driver.core.find(2)->ledger.num_computed(), 4);  // on what that step is to write
  CHECK_EQ(driver.fail(), (Ids{1}));
  driver.core.set_ready(2, true);
  CHECK(!driver.plan(kDecode));
  CHECK_EQ(driver.core.allocator().pool().num_used(), 0);
}

TEST(phases_a_failure_takes_along_a_fork_whose_copy_it_did_not_make) {
  Driver driver(phased(Role::kNormal, 65, 6));
  driver.add(1, prompt_of(6), 8);
  step(driver, kPrefill);
  for (SeqId id = 2; id <= 8; ++id) driver.core.fork(1, spec_of(id, prompt_of(6), 8));
  CHECK(driver.plan(kDecode));
  CHECK_EQ(driver.last.seq_ids.size(), 6u);
  CHECK_EQ(driver.scheduled(2), 0);
  CHECK(!driver.core.find(2)->shares_last_block);
  driver.fail();
  CHECK(driver.core.find(2)->blocks[0].empty());
  driver.run_dry_phased();
}

TEST(phases_prompt_engines_keep_what_they_prefilled_for_its_hand_off) {
  Driver driver(phased(Role::kPrompt));
  driver.add(1, prompt_of(6), 8);
  step(driver, kPrefill);
  CHECK_EQ(driver.core.prompted_ids(), (Ids{1}));
  CHECK_EQ(driver.core.find(1)->blocks[0].size(), 2u);
  CHECK_EQ(driver.core.find(1)->tokens.back(), token_at(1, 6));
  CHECK(driver.core.finish(1));
  CHECK_EQ(driver.core.allocator().pool().num_used(), 0);
}

TEST(phases_a_companion_step_has_no_slices_and_a_result) {
  Driver driver(phased());
  CHECK(!driver.plan(kPrefill));
  CHECK_EQ(driver.last.step, kNoStep);
  const StepPlan plan = driver.core.plan(kPrefill, {0, true});
  CHECK_EQ(plan.step, 0);
  CHECK(plan.seq_ids.empty());
  CHECK(driver.core.commit(plan.step, {}, Ints{0}, {}).seq_ids.empty());
  CHECK_EQ(driver.core.num_steps_in_flight(), 0u);
}

TEST(phases_verification_lengths_follow_the_cost) {
  SchedulerConfig config = phased();
  config.limits.lookahead = 2;
  Driver driver(config);
  driver.add(1, prompt_of(6), 8), driver.add(2, prompt_of(3, 50), 8);
  step(driver, kPrefill);
  StepCost cost;
  cost.sizes = {2, 4, 6}, cost.times_ms = {1.0, 1.2, 2.0};
  driver.core.set_cost(cost);
  for (const SeqId id : {1, 2}) driver.core.set_drafts(id, {3, 4});
  driver.core.set_confidences(1, {0.9, 0.5}), driver.core.set_confidences(2, {0.8, 0.25});
  CHECK(driver.plan(kDecode));
  CHECK_EQ(driver.last.num_scheduled, (Ints{2, 2}));
  CHECK_EQ(driver.last.num_drafts, (Ints{1, 1}));
  CHECK_EQ(driver.last.draft_tokens, (std::vector<Token>{3, 3}));
  CHECK_EQ(last_clip(driver), Clip::kVerification);
  driver.commit();
  driver.core.set_drafts(1, {3, 4});  // judged once, for one step only
  CHECK(driver.plan(kDecode));
  CHECK_EQ(driver.scheduled(1), 3);
  CHECK_EQ(refusal([&] { driver.core.set_confidences(1, {1.5}); }), std::string("confidences"));
  cost.sizes = {4, 2};
  CHECK_EQ(refusal([&] { driver.core.set_cost(cost); }), std::string("times_ms"));
}

namespace {

// A NORMAL engine under random adds, forks, aborts, failures, resets and drafts, its KV shadowed where nothing is
// speculated. Steps of both kinds come in any order.
class History {
 public:
  History(std::uint32_t seed, bool shadowed)
      : random_(seed), driver_(random_config(shadowed)), shadowed_(shadowed), shadow_(4) {}

  void run() {
    for (int i = 0; i < 250; ++i) {
      act();
      driver_.check();
      driver_.core.take_ignored();
    }
    while (!driver_.in_flight.empty()) driver_.commit();
    driver_.run_dry_phased(5000);
    CHECK_EQ(driver_.core.num_unfinished(), 0u);
    CHECK_EQ(driver_.core.allocator().pool().num_used(), 0);
    CHECK_EQ(driver_.core.num_steps_in_flight(), 0u);
  }

  std::int64_t preemptions() const { return driver_.core.stats().preemptions; }
  int clones = 0, chunks = 0, mine_refused = 0;

 private:
  int below(int n) { return static_cast<int>(random_() % n); }

  SchedulerConfig random_config(bool shadowed) {
    SchedulerConfig config = phased(Role::kNormal, 12 + below(30), 8 + below(20));
    Limits& l = config.limits;
    config.prefix_caching = below(3) > 0;
    l.max_model_len = 40, l.max_seqs = 2 + below(5), l.priority = below(3) == 0;
    l.watermark_blocks = below(3), l.full_sequence_must_fit = below(2), l.lookahead = below(3);
    l.min_slice = 1 + below(3), l.cp_size = 1 + below(2), l.chunked_prefill = below(4) > 0;
    l.stop_preempted = below(4) == 0;
    if (below(3) == 0) l.max_sum_keys = 20 + below(30);
    if (below(3) == 0) l.prefill_cost = {10, 1, 0.1};
    if (!shadowed && below(2)) config.groups.push_back({GroupKind::kSliding, 1 + below(12)});
    return config;
  }

  void act() {
    switch (below(12)) {
      case 0:
      case 1:
        return add();
      case 2:
        return fork();
      case 3:
        return void(next_ && driver_.core.finish(below(next_)));
      case 4:
        return void(driver_.in_flight.empty() || below(4) || (driver_.fail(), true));
      case 5:
        return void(below(8) || driver_.core.reset_prefix_cache(below(2)));
      case 6:
        return draft();
      default:
        return driver_.in_flight.size() < 2 && below(3) ? plan() : commit();
    }
  }
  void add() {
    SequenceSpec spec = spec_of(next_, prompt_of(1 + below(25), below(2)), 1 + below(14));
    spec.priority = below(3), spec.arrival = next_;
    const std::int32_t length = static_cast<std::int32_t>(spec.prompt.size());
    if (driver_.core.config().limits.chunked_prefill && length > 4 && below(3) == 0)
      spec.checkpoints = {1 + below(length - 1)};
    if (length > 6 && spec.checkpoints.empty() && below(3) == 0)
      spec.keys.media = {{"item", below(length - 5), 2 + below(3)}};
    driver_.core.add(spec);
    ++next_;
  }
  void fork() {
    const Sequence* parent = next_ ? driver_.core.find(below(next_)) : nullptr;
    if (!parent) return;
    const std::int32_t shared = parent->ledger.num_computed() - below(2);
    std::vector<Token> prompt(parent->tokens.begin(),
                              parent->tokens.begin() + std::clamp<std::ptrdiff_t>(shared, 0, parent->tokens.size()));
    prompt.push_back(3);
    try {
      driver_.core.fork(parent->id(), spec_of(next_, prompt, 1 + below(10)));
      ++next_;
    } catch (const InvalidField&) {
      ++mine_refused;
    }
  }
  void draft() {
    if (shadowed_ || !next_) return;
    const SeqId id = below(next_);
    const Sequence* seq = driver_.core.find(id);
    std::vector<Token> drafts;
    for (int d = below(4); d > 0 && seq; --d) drafts.push_back(below(3) ? token_at(id, seq->tokens.size()) : 5);
    driver_.core.set_confidences(id, std::vector<double>(drafts.size(), 0.5));
    driver_.core.set_drafts(id, drafts);
  }
  void plan() {
    const StepKind kind = below(3) ? kDecode : kPrefill;
    const bool possible = driver_.core.prefill_possible();
    const bool planned = driver_.plan(kind, {kind == kPrefill ? below(2) * 20 : 0, false});
    if (kind == kPrefill) CHECK_EQ(planned, possible);
    clones += static_cast<int>(driver_.last.clone_blocks.size() / 2);
    for (std::size_t s = 0; s < driver_.last.seq_ids.size(); ++s)
      chunks += kind == kPrefill && !driver_.last.samples[s];
    if (shadowed_) shadow_.run(driver_.core, driver_.last);
  }
  void commit() {
    if (!driver_.in_flight.empty()) driver_.commit();
  }

  std::mt19937 random_;
  Driver driver_;
  bool shadowed_;
  Shadow shadow_;
  SeqId next_ = 0;
};

}  // namespace

TEST(phases_random_histories_leave_nothing_behind) {
  std::int64_t preemptions = 0, clones = 0, chunks = 0;
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    History history(seed, seed % 2);
    history.run();
    preemptions += history.preemptions(), clones += history.clones, chunks += history.chunks;
  }
  CHECK(preemptions > 300 && clones > 50 && chunks > 500);  // the histories did reach what they are for
}
