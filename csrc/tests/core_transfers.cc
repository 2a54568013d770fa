// KV that leaves for a store (sealed stretches) and KV that comes from one (imported blocks).
#include "tests/core_driver.h"

using namespace headrace::core;
using headrace::testing::Driver;
using headrace::testing::prompt_of;

namespace {

SchedulerConfig config_of(std::int32_t num_blocks = 41, std::vector<GroupSpec> groups = {GroupSpec{}}) {
  SchedulerConfig config;
  config.num_blocks = num_blocks, config.block_size = 4, config.seal_tokens = 8, config.groups = std::move(groups);
  config.limits.token_budget = 12, config.limits.max_model_len = 100;
  return config;
}

SequenceSpec spec_of(SeqId id, std::int32_t length, bool ready = true) {
  SequenceSpec spec;
  spec.id = id, spec.prompt = prompt_of(length), spec.max_tokens = 8, spec.ready = ready;
  return spec;
}

}  // namespace

TEST(transfers_a_stretch_is_sealed_when_its_step_has_returned) {
  Driver driver(config_of());
  driver.add(1, prompt_of(20), 6);
  driver.plan();
  CHECK(driver.core.take_sealed().empty());
  driver.plan();  // the second step is in flight: what it writes is not final
  const auto blocks = driver.core.find(1)->blocks[0];
  driver.commit();
  std::vector<Sealed> sealed = driver.core.take_sealed();
  CHECK_EQ(sealed.size(), 1u);
  CHECK(sealed[0].seq == 1 && sealed[0].index == 0 && sealed[0].tokens == prompt_of(8));
  CHECK(sealed[0].blocks == std::vector<BlockId>(blocks.begin(), blocks.begin() + 2));
  driver.commit();
  sealed = driver.core.take_sealed();
  CHECK(sealed.size() == 1 && sealed[0].index == 1 && sealed[0].tokens == prompt_of(8, 8));
  driver.run_dry();  // the third is sealed by the step that ends the sequence, its blocks still named
  sealed = driver.core.take_sealed();
  CHECK(sealed.size() == 1 && sealed[0].index == 2);
}

TEST(transfers_a_failed_step_seals_nothing_and_nothing_is_sealed_twice) {
  Driver driver(config_of());
  driver.add(1, prompt_of(20), 2);
  driver.plan();
  driver.fail();
  CHECK(driver.core.take_sealed().empty());
  driver.run_dry();
  std::vector<std::int32_t> seen;
  for (const Sealed& sealed : driver.core.take_sealed()) seen.push_back(sealed.index);
  CHECK(seen == (std::vector<std::int32_t>{0, 1}));
}

TEST(transfers_windows_leave_null_blocks_in_what_is_sealed) {
  Driver driver(config_of(81, {{GroupKind::kFull, 0}, {GroupKind::kSliding, 4}}));
  driver.add(1, prompt_of(24), 2);
  driver.run_dry();
  for (const Sealed& sealed : driver.core.take_sealed()) {
    CHECK_EQ(sealed.blocks.size(), 4u);  // two blocks of each group
    CHECK(sealed.blocks[0] != kNullBlock && sealed.blocks[1] != kNullBlock);
  }
}

TEST(transfers_imported_blocks_are_hits_and_no_reference_is_left) {
  Driver driver(config_of());
  driver.core.add(spec_of(1, 20, false));
  CHECK(!driver.plan());
  const auto imported = driver.core.import_prefix(1, 16);
  CHECK_EQ(imported.size(), 4u);
  CHECK_EQ(driver.core.allocator().pool().num_used(), 0);
  CHECK_EQ(driver.core.cached_tokens(1), 16);
  driver.core.set_ready(1, true);
  CHECK(driver.plan());
  CHECK_EQ(driver.last.num_computed[0], 16);
  for (const ImportedBlock& block : imported) CHECK_EQ(driver.last.block_ids[block.position], block.block);
  driver.commit();
  driver.run_dry();
}

TEST(transfers_import_leaves_a_token_to_compute_and_takes_only_what_is_missing) {
  Driver driver(config_of());
  driver.core.add(spec_of(1, 16, false));
  CHECK_EQ(driver.core.import_prefix(1, 8).size(), 2u);
  const auto more = driver.core.import_prefix(1, 16);  // the last block would leave nothing to compute
  CHECK_EQ(more.size(), 1u);
  CHECK_EQ(more[0].position, 2);
  CHECK_EQ(driver.core.cached_tokens(1), 12);
}

TEST(transfers_import_may_begin_behind_what_is_fetched) {
  Driver driver(config_of());
  driver.core.add(spec_of(1, 20, false));
  const auto imported = driver.core.import_prefix(1, 16, 8);
  CHECK(imported.size() == 2 && imported[0].position == 3 && imported[1].position == 2);
  CHECK_EQ(driver.core.cached_tokens(1), 0);  // what is before them is not here
  CHECK_EQ(driver.core.import_prefix(1, 8).size(), 2u);
  CHECK_EQ(driver.core.cached_tokens(1), 16);
}

TEST(transfers_import_is_all_or_nothing_and_keeps_what_is_cached) {
  Driver driver(config_of(7));
  driver.core.add(spec_of(1, 15, false));
  CHECK_EQ(driver.core.import_prefix(1, 4).size(), 1u);
  driver.add(2, prompt_of(14, 500), 2);
  driver.plan(), driver.commit(), driver.plan();  // four of six blocks are in use, one is the import
  CHECK(driver.core.import_prefix(1, 12).empty());
  CHECK_EQ(driver.core.cached_tokens(1), 4);
  driver.check();
  driver.commit();
}

TEST(transfers_a_sliding_group_needs_its_last_window_only) {
  Driver driver(config_of(41, {{GroupKind::kFull, 0}, {GroupKind::kSliding, 5}}));
  driver.core.add(spec_of(1, 40, false));
  std::int32_t full = 0, sliding = 0;
  for (const ImportedBlock& block : driver.core.import_prefix(1, 32)) ++(block.group == 0 ? full : sliding);
  CHECK(full == 8 && sliding == 1);
  CHECK_EQ(driver.core.cached_tokens(1), 32);
}

TEST(transfers_nothing_is_imported_for_who_runs_is_unknown_or_does_not_read) {
  Driver driver(config_of());
  CHECK(driver.core.import_prefix(9, 16).empty());
  driver.core.add(spec_of(1, 20));
  driver.plan();
  CHECK(driver.core.import_prefix(1, 16).empty());
  driver.commit();
  SequenceSpec unread = spec_of(2, 20, false);
  unread.reads_cache = false;
  driver.core.add(std::move(unread));
  CHECK(driver.core.import_prefix(2, 16).empty());
}
