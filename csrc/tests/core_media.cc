// MIXED steps and media items: a slice ends before an item it has no room for, and no prompt waits for ever.
#include <random>

#include "core/scheduler.h"
#include "tests/core_driver.h"

using namespace headrace::testing;

namespace {

using Ints = std::vector<std::int32_t>;

SchedulerConfig mixed(std::int32_t budget = 16) {
  SchedulerConfig config;
  config.num_blocks = 129, config.block_size = 4, config.prefix_caching = false;
  config.limits.token_budget = budget, config.limits.max_model_len = 400;
  return config;
}

void add(Driver& driver, SeqId id, std::int32_t length, std::vector<MediaItem> media, std::int32_t max_tokens = 4) {
  SequenceSpec spec;
  spec.id = id, spec.prompt = prompt_of(length), spec.max_tokens = max_tokens, spec.keys.media = std::move(media);
  driver.core.add(std::move(spec));
}

void add_generating(Driver& driver, SeqId id, std::int32_t max_tokens = 200) {
  add(driver, id, 1, {}, max_tokens);
  CHECK(driver.plan());
  driver.commit();
}

// Tokens of the sequence in the next step.
std::int32_t next(Driver& driver, SeqId id) {
  driver.plan();
  const std::int32_t q = driver.scheduled(id);
  if (!driver.in_flight.empty()) driver.commit();
  return q;
}

Clip clip_of(const Driver& driver, SeqId id) {
  const auto it = std::find(driver.last.seq_ids.begin(), driver.last.seq_ids.end(), id);
  return static_cast<Clip>(driver.last.clips.at(it - driver.last.seq_ids.begin()));
}

}  // namespace

TEST(media_a_slice_ends_before_an_item_that_does_not_fit) {
  Driver driver(mixed());
  add(driver, 1, 40, {{"a", 10, 12}, {"b", 30, 5}});
  CHECK_EQ(next(driver, 1), 10), CHECK_EQ(clip_of(driver, 1), Clip::kMedia);
  CHECK_EQ(next(driver, 1), 16), CHECK_EQ(clip_of(driver, 1), Clip::kTokenBudget);  // the item, and 4 behind it
  CHECK_EQ(next(driver, 1), 14), CHECK_EQ(clip_of(driver, 1), Clip::kWhole);
}

TEST(media_an_item_longer_than_any_step_is_cut_where_the_step_ends) {
  Driver driver(mixed());
  add(driver, 1, 30, {{"a", 3, 20}, {"b", 25, 4}});
  CHECK_EQ(next(driver, 1), 16), CHECK_EQ(clip_of(driver, 1), Clip::kTokenBudget);
  CHECK_EQ(next(driver, 1), 14);
}

TEST(media_the_rest_of_an_item_that_was_cut_is_kept_together_if_it_can_be) {
  Driver driver(mixed());
  add(driver, 1, 40, {{"a", 3, 20}});
  CHECK_EQ(next(driver, 1), 16);
  add(driver, 2, 30, {});
  CHECK_EQ(next(driver, 1), 16);  // 7 of the item and 9 behind it
}

TEST(media_an_item_waits_for_prompts_but_not_for_those_who_generate) {
  Driver driver(mixed());
  add(driver, 1, 20, {}), add(driver, 2, 20, {{"a", 0, 14}});
  CHECK_EQ(next(driver, 1), 16);
  CHECK(driver.plan());  // 4 for the first, and the item of 14 in the 12 left? It waits.
  CHECK_EQ(driver.scheduled(1), 4), CHECK_EQ(driver.scheduled(2), 0);
  driver.commit();
  CHECK_EQ(next(driver, 2), 15);  // one row is for the first, which generates
  Driver crowded(mixed());
  for (SeqId id = 1; id <= 3; ++id) add_generating(crowded, id);
  add(crowded, 9, 20, {{"a", 0, 14}});
  CHECK_EQ(next(crowded, 9), 13);  // 13 is all there will be for a long time
  CHECK_EQ(clip_of(crowded, 9), Clip::kTokenBudget);
}

TEST(media_a_running_prompt_waits_before_its_item_and_keeps_its_place) {
  SchedulerConfig config = mixed();
  config.limits.long_prefill_threshold = 14;
  Driver driver(config);
  add(driver, 1, 60, {}), add(driver, 2, 15, {{"a", 1, 14}});
  CHECK_EQ(next(driver, 1), 14), CHECK_EQ(driver.scheduled(2), 1);
  CHECK_EQ(clip_of(driver, 2), Clip::kMedia);
  for (const std::int32_t q : {14, 14, 14}) CHECK_EQ(next(driver, 1), q), CHECK_EQ(driver.scheduled(2), 0);
  CHECK_EQ(next(driver, 1), 4), CHECK_EQ(driver.scheduled(2), 0);  // 12 left for 14
  CHECK_EQ(next(driver, 2), 14);
}

// No slice of the step just planned ends inside an item for which there is room beside all who may generate.
void check_cuts(const Driver& driver) {
  const Limits& limits = driver.core.config().limits;
  const auto running = static_cast<std::int32_t>(driver.core.running_ids().size());
  std::int32_t room = std::min(limits.token_budget - running,
                               limits.input_budget - limits.draft_slots - running * (1 + limits.draft_slots));
  if (limits.long_prefill_threshold > 0) room = std::min(room, limits.long_prefill_threshold);
  for (std::size_t i = 0; i < driver.last.seq_ids.size(); ++i) {
    const std::int32_t start = driver.last.num_computed[i], end = start + driver.last.num_scheduled[i];
    for (const MediaItem& item : driver.core.find(driver.last.seq_ids[i])->spec.keys.media)
      if (item.start < end && end < item.start + item.length)
        CHECK(item.start + item.length - std::max(item.start, start) > room);
  }
}

TEST(media_random_histories_end_and_cut_only_what_has_no_room) {
  std::mt19937 random(7);
  const auto below = [&](std::int32_t n) { return static_cast<std::int32_t>(random() % n); };
  for (int history = 0; history < 60; ++history) {
    SchedulerConfig config = mixed(8 + below(24));
    config.prefix_caching = below(2), config.limits.priority = below(2);
    config.num_blocks = 60 + below(60), config.limits.draft_slots = below(3);
    config.limits.long_prefill_threshold = below(2) * (4 + below(12));
    Driver driver(config);
    for (SeqId id = 0; id < 12; ++id) {
      std::vector<MediaItem> media;
      std::int32_t at = below(6);
      for (int item = below(4); item > 0; --item) {
        media.push_back({std::string(1, static_cast<char>('a' + below(3))), at, 1 + below(20)});
        at += media.back().length + below(9);
      }
      SequenceSpec spec;
      spec.id = id, spec.prompt = prompt_of(at + 1 + below(12)), spec.max_tokens = 1 + below(9);
      spec.keys.media = media, spec.priority = below(3);
      driver.core.add(std::move(spec));
      if (below(2) && driver.plan()) check_cuts(driver), driver.commit();
    }
    for (int step = 0; driver.core.num_unfinished() > 0; ++step) {
      CHECK(step < 2000);
      if (driver.plan()) check_cuts(driver), driver.commit();
    }
  }
}
