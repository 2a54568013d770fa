// The scheduler: what it refuses, failures under overlap, order, and random histories.
#include <cmath>
#include <limits>
#include <random>

#include "core/scheduler.h"
#include "tests/core_driver.h"

using namespace headrace::testing;

namespace {

using Ids = std::vector<SeqId>;
constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t kMin = std::numeric_limits<std::int32_t>::min();

SchedulerConfig small(std::int32_t num_blocks = 65, std::int32_t budget = 32) {
  SchedulerConfig config;
  config.num_blocks = num_blocks, config.block_size = 4;
  config.limits.token_budget = budget, config.limits.max_model_len = 200;
  return config;
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

}  // namespace

TEST(scheduler_refuses_limits_that_cannot_be_and_names_them) {
  const auto refused = [](std::int32_t Limits::* knob, std::int32_t value) {
    SchedulerConfig config = small();
    config.limits.*knob = value;
    return refusal([&] { Scheduler scheduler(config); });
  };
  for (const std::int32_t value : {0, -1, kMin, kMax}) {
    CHECK_EQ(refused(&Limits::token_budget, value), std::string("token_budget"));
    CHECK_EQ(refused(&Limits::max_seqs, value), std::string("max_seqs"));
    CHECK_EQ(refused(&Limits::max_model_len, value), std::string("max_model_len"));
  }
  for (const std::int32_t value : {-1, kMin, kMax}) {
    CHECK_EQ(refused(&Limits::input_budget, value), std::string("input_budget"));
    CHECK_EQ(refused(&Limits::draft_slots, value), std::string("draft_slots"));
    CHECK_EQ(refused(&Limits::lookahead, value), std::string("lookahead"));
    CHECK_EQ(refused(&Limits::long_prefill_threshold, value), std::string("long_prefill_threshold"));
    CHECK_EQ(refused(&Limits::watermark_blocks, value), std::string("watermark_blocks"));
  }
  CHECK_EQ(refused(&Limits::watermark_blocks, 64), std::string("watermark_blocks"));
  SchedulerConfig config = small();
  config.limits.input_budget = 3, config.limits.draft_slots = 3;
  CHECK_EQ(refusal([&] { Scheduler scheduler(config); }), std::string("input_budget"));
}

TEST(scheduler_input_budget_is_derived_when_not_given) {
  SchedulerConfig config = small();
  config.limits.draft_slots = 3, config.limits.max_seqs = 5;
  CHECK_EQ(Scheduler(config).config().limits.input_budget, 32 + 15);
  config.limits.draft_slots = 1 << 20, config.limits.max_seqs = 1 << 20;
  CHECK_EQ(Scheduler(config).config().limits.input_budget, kMostOfAnything);
}

// A prompt of low rank, admitted in a quiet moment, keeps nobody better waiting for its end; what generates goes on.
TEST(scheduler_by_rank_prompts_share_a_step_in_order_of_rank) {
  for (const bool by_rank : {true, false}) {
    SchedulerConfig config = small(65, 8);
    config.limits.priority = by_rank;
    Driver driver(config);
    driver.add(1, prompt_of(3, 0), 20, 9);
    CHECK(driver.plan());
    driver.commit();
    driver.add(2, prompt_of(30, 100), 4, 5);
    CHECK(driver.plan());
    driver.commit();
    CHECK_EQ(driver.scheduled(1), 1);
    CHECK_EQ(driver.scheduled(2), 7);
    driver.add(3, prompt_of(4, 200), 4, 1);
    driver.add(4, prompt_of(4, 300), 4, 7);
    CHECK(driver.plan());
    driver.commit();
    CHECK_EQ(driver.scheduled(1), 1);
    CHECK_EQ(driver.scheduled(3), by_rank ? 4 : 0);
    CHECK_EQ(driver.scheduled(2), by_rank ? 3 : 7);
    CHECK_EQ(driver.scheduled(4), 0);
    driver.run_dry();
  }
}

TEST(scheduler_refuses_sequences_and_is_unchanged) {
  Driver driver(small());
  driver.add(1, prompt_of(4), 4);
  const auto refused = [&](auto spoil) {
    SequenceSpec spec;
    spec.id = 2, spec.prompt = prompt_of(4);
    spoil(spec);
    const std::string field = refusal([&] { driver.core.add(spec); });
    CHECK_EQ(driver.core.num_unfinished(), 1u);
    return field;
  };
  using Spec = SequenceSpec;
  CHECK_EQ(refused([](Spec& s) { s.id = 1; }), std::string("id"));
  CHECK_EQ(refused([](Spec& s) { s.id = -1; }), std::string("id"));
  CHECK_EQ(refused([](Spec& s) { s.prompt.clear(); }), std::string("prompt"));
  CHECK_EQ(refused([](Spec& s) { s.prompt[2] = -1; }), std::string("prompt"));
  CHECK_EQ(refused([](Spec& s) { s.prompt = prompt_of(200); }), std::string("prompt"));
  CHECK_EQ(refused([](Spec& s) { s.max_tokens = 0; }), std::string("max_tokens"));
  CHECK_EQ(refused([](Spec& s) { s.min_tokens = 17; }), std::string("min_tokens"));
  CHECK_EQ(refused([](Spec& s) { s.min_tokens = -1; }), std::string("min_tokens"));
  CHECK_EQ(refused([](Spec& s) { s.arrival = std::nan(""); }), std::string("arrival"));
  CHECK_EQ(refused([](Spec& s) { s.keys.media = {{"a", 2, 2}, {"b", 3, 1}}; }), std::string("keys"));
  CHECK_EQ(refused([](Spec& s) { s.keys.media = {{"a", 1, 0}}; }), std::string("keys"));
}

TEST(scheduler_max_tokens_without_end_stops_at_the_model_length) {
  Driver driver(small());
  driver.add(1, prompt_of(190), kMax);
  driver.run_dry();
  CHECK_EQ(driver.core.num_unfinished(), 0u);
}

TEST(scheduler_refuses_what_the_pool_can_never_hold) {
  Driver driver(small(11));  // 40 tokens
  CHECK_EQ(driver.core.capacity_tokens(), 40);
  CHECK_EQ(refusal([&] { driver.add(1, prompt_of(30), 11); }), std::string("max_tokens"));
  driver.add(1, prompt_of(30), 10);
  driver.run_dry();
}

// Whole prompts only: a sequence that could not be resumed in one step would block the queue for ever.
TEST(scheduler_without_chunks_refuses_what_no_step_could_take) {
  SchedulerConfig config = small();
  config.limits.chunked_prefill = false;
  Driver driver(config);
  CHECK_EQ(refusal([&] { driver.add(1, prompt_of(33), 1); }), std::string("prompt"));
  CHECK_EQ(refusal([&] { driver.add(1, prompt_of(30), 4); }), std::string("max_tokens"));
  driver.add(1, prompt_of(30), 3);
  driver.run_dry();
}

TEST(scheduler_commit_checks_rows_before_anything_changes) {
  Driver driver(small(65, 8));
  driver.add(1, prompt_of(6), 4), driver.add(2, prompt_of(6, 50), 4);
  CHECK(driver.plan());  // 6 tokens of 1, 2 of 2
  const auto refused = [&](std::vector<std::int32_t> valid, std::vector<std::int32_t> offsets,
                           std::vector<Token> tokens) {
    const std::string field = refusal([&] { driver.commit_raw(valid, offsets, tokens); });
    CHECK_EQ(driver.ledger(1).num_in_flight(), 6);
    CHECK_EQ(driver.core.num_steps_in_flight(), 1u);
    return field;
  };
  CHECK_EQ(refused({6}, {0, 1}, {9}), std::string("num_valid"));
  CHECK_EQ(refused({5, 2}, {0, 1, 1}, {9}), std::string("num_valid"));  // no drafts: nothing to reject
  CHECK_EQ(refused({6, 3}, {0, 1, 1}, {9}), std::string("num_valid"));
  CHECK_EQ(refused({-1, 2}, {0, 1, 1}, {9}), std::string("num_valid"));
  CHECK_EQ(refused({6, 2}, {0, 1}, {9}), std::string("offsets"));
  CHECK_EQ(refused({6, 2}, {1, 1, 1}, {9}), std::string("offsets"));
  CHECK_EQ(refused({6, 2}, {0, 2, 1}, {9}), std::string("offsets"));
  CHECK_EQ(refused({6, 2}, {0, 1, 2}, {9, 9}), std::string("offsets"));  // an unfinished prefill emits nothing
  CHECK_EQ(refused({6, 2}, {0, 2, 2}, {9, 9}), std::string("offsets"));
  CHECK_EQ(refused({6, 2}, {0, 1, 1}, {-1}), std::string("tokens"));
  CHECK_THROWS(std::logic_error, driver.core.commit(7, {}, {}, {}));
  driver.commit();
}

TEST(scheduler_steps_return_in_order) {
  Driver driver(small());
  driver.add(1, prompt_of(6), 4);
  CHECK(driver.plan() && driver.plan());
  const StepId second = driver.in_flight[1].step;
  CHECK_THROWS(std::logic_error, driver.core.commit(second, {}, {}, {}));
  CHECK_THROWS(std::logic_error, driver.core.fail(second));
  CHECK_EQ(driver.core.num_steps_in_flight(), 2u);
}

TEST(scheduler_failure_keeps_serving_order) {
  Driver driver(small());
  for (SeqId id = 1; id <= 4; ++id) driver.add(id, prompt_of(4, 10 * id), 4);
  driver.plan(), driver.fail();
  CHECK_EQ(driver.core.waiting_ids(), (Ids{1, 2, 3, 4}));
  driver.plan();
  CHECK_EQ(driver.last.seq_ids, (Ids{1, 2, 3, 4}));
}

TEST(scheduler_failure_voids_later_steps_and_their_names) {
  Driver driver(small());
  driver.add(1, prompt_of(9), 4);
  driver.plan();
  driver.add(2, prompt_of(9), 4);
  driver.plan();  // hits two blocks that step 0 is to write
  CHECK_EQ(driver.scheduled(2), 1);
  driver.fail();
  CHECK_EQ(driver.core.num_running(), 0u);
  CHECK_EQ(driver.core.allocator().pool().num_used(), 0);
  const CommitResult late = driver.commit();
  for (const std::uint8_t outcome : late.outcomes) CHECK_EQ(outcome, static_cast<std::uint8_t>(Outcome::kDropped));
  CHECK(late.tokens.empty());
  driver.plan();
  CHECK_EQ(driver.scheduled(1), 9);  // no hit on blocks that were never written
  CHECK_EQ(driver.scheduled(2), 1);  // but on those of this step
  driver.run_dry();
}

TEST(scheduler_a_second_failure_leaves_alone_what_the_first_made_void) {
  Driver driver(small());
  driver.add(1, prompt_of(6), 4);
  driver.plan();
  driver.add(2, prompt_of(6, 50), 4);
  driver.plan();
  CHECK_EQ(driver.last.seq_ids.size(), 2u);
  CHECK_EQ(driver.fail(), (Ids{1}));
  driver.core.finish(1);  // as an engine does with those
  CHECK(driver.fail().empty());
  CHECK_EQ(driver.core.waiting_ids(), (Ids{2}));
  driver.run_dry();
}

TEST(scheduler_failure_drops_results_of_sequences_preempted_before) {
  SchedulerConfig config = small(7, 32);
  config.prefix_caching = false;
  Driver driver(config);
  driver.add(1, prompt_of(8), 12), driver.add(2, prompt_of(11), 8);
  driver.plan(), driver.plan();
  while (driver.core.num_running() == 2) CHECK(driver.plan());  // deeper and deeper, until 2 has to give way
  CHECK(driver.ledger(2).num_stale() > 1);
  driver.fail();  // its first result never came: the later ones must not be appended
  while (!driver.in_flight.empty()) driver.commit();
  CHECK_EQ(driver.ledger(2).num_tokens(), 11);
  driver.run_dry();
}

TEST(scheduler_drafts_stop_at_a_sequence_s_own_limit) {
  SchedulerConfig config = small();
  config.limits.lookahead = 5;
  Driver driver(config);
  driver.add(1, prompt_of(6), 3);
  driver.plan(), driver.commit();
  driver.core.set_drafts(1, {1, 2, 3, 4, 5});
  driver.plan();
  CHECK_EQ(driver.last.num_drafts[0], 1);  // two tokens can still be emitted
  driver.run_dry();
  CHECK_EQ(refusal([&] { driver.core.set_drafts(1, {-1}); }), std::string("drafts"));
}

TEST(scheduler_waiting_ones_that_cannot_run_do_not_block_others) {
  Driver driver(small());
  for (SeqId id = 1; id <= 3; ++id) driver.add(id, prompt_of(4, 10 * id), 4);
  driver.core.set_ready(1, false);
  driver.plan();
  CHECK_EQ(driver.last.seq_ids, (Ids{2, 3}));
  driver.core.set_ready(1, true);
  driver.plan();
  CHECK_EQ(driver.last.seq_ids.back(), 1);
}

// Everything at once, over many shapes: drafts, windows, both policies, aborts, failures, resets, overlap.
// The driver checks references, counts and budgets after every call; at the end nothing may be left.
TEST(scheduler_random_histories_leave_nothing_behind) {
  std::mt19937 random(5);
  std::map<std::uint8_t, int> outcomes;
  std::int64_t preemptions = 0, hits = 0, accepted = 0;
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  for (int round = 0; round < 150; ++round) {
    SchedulerConfig config = small(20 + below(40), 4 + below(30));
    config.limits.max_model_len = 40, config.limits.max_seqs = 1 + below(6), config.limits.priority = below(2);
    config.limits.watermark_blocks = below(3), config.limits.full_sequence_must_fit = below(2);
    config.limits.long_prefill_threshold = below(3) * 5, config.limits.lookahead = below(4);
    config.limits.draft_slots = below(3);
    config.limits.input_budget = below(2) ? 4 + below(30) : 0;
    config.prefix_caching = below(4) > 0;
    config.hash = below(2) ? HashKind::kWeakForTests : HashKind::kSha256Cbor;
    if (below(2)) config.groups.push_back({GroupKind::kSliding, 1 + below(12)});
    Driver driver(config);
    const std::size_t depth = 1 + below(3);
    SeqId next = 0;
    for (int i = 0; i < 250; ++i) {
      switch (below(12)) {
        case 0:
        case 1: {
          try {
            driver.add(next, prompt_of(1 + below(25), below(2)), 1 + below(12), below(3), i);
            ++next;
          } catch (const InvalidField&) {  // can never fit: an answer as good as any
          }
          break;
        }
        case 2:
          if (next) driver.core.finish(below(next));
          break;
        case 3:
          if (!driver.in_flight.empty() && below(4) == 0) driver.fail();
          break;
        case 4:
          if (below(6) == 0) driver.core.reset_prefix_cache(below(2));
          break;
        case 5:
          if (next) driver.core.set_ready(below(next), below(3) > 0);
          break;
        case 6: {
          const SeqId id = next ? below(next) : 0;
          const Sequence* seq = driver.core.find(id);
          const auto end = seq ? static_cast<std::int32_t>(seq->tokens.size()) : 0;
          std::vector<Token> drafts;
          for (int d = below(4); d > 0; --d) drafts.push_back(below(3) ? token_at(id, end) : 5);
          driver.core.set_drafts(id, drafts);
          break;
        }
        default:
          if (driver.in_flight.size() < depth && below(3)) {
            driver.plan();
          } else if (!driver.in_flight.empty()) {
            const CommitResult result = driver.commit();
            for (const std::uint8_t outcome : result.outcomes) ++outcomes[outcome];
            for (std::size_t s = 0; s < result.seq_ids.size(); ++s)
              accepted += result.offsets[s + 1] - result.offsets[s] > 1;
          }
      }
      driver.check();
    }
    for (SeqId id = 0; id < next; ++id) driver.core.set_ready(id, true);
    while (!driver.in_flight.empty()) driver.commit();
    driver.run_dry(5000);
    CHECK_EQ(driver.core.num_unfinished(), 0u);
    CHECK_EQ(driver.core.allocator().pool().num_used(), 0);
    CHECK_EQ(driver.core.num_steps_in_flight(), 0u);
    preemptions += driver.core.stats().preemptions, hits += driver.core.stats().prefix_hits;
  }
  for (std::uint8_t outcome = 0; outcome < 4; ++outcome) CHECK(outcomes[outcome] > 50);
  CHECK(preemptions > 200 && hits > 1000 && accepted > 30);  // the histories did reach what they are for
}
