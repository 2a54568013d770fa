// Blocks for sequences: all or nothing, hits over full and sliding groups, release behind windows, peaks.
#include <algorithm>
#include <numeric>
#include <random>

#include "core/allocator.h"
#include "tests/check.h"

using namespace headrace::core;

namespace {

using Ids = std::vector<BlockId>;
constexpr GroupSpec kFull{GroupKind::kFull, 0};

GroupSpec sliding(std::int32_t window) { return {GroupKind::kSliding, window}; }

Sequence make(std::int32_t length, const Allocator& allocator, Token first = 0) {
  SequenceSpec spec;
  spec.prompt.resize(length);
  std::iota(spec.prompt.begin(), spec.prompt.end(), first);
  return Sequence(std::move(spec), allocator.num_groups());
}

// Computes `count` more tokens to the end: allocate, advance, commit, name.
void compute(Allocator& allocator, Sequence& seq, std::int32_t count) {
  CHECK_EQ(allocator.allocate(seq, count, 0, nullptr, 0), 0);
  const std::int32_t promised = seq.ledger.advance(count, 0);
  seq.ledger.commit(count, count, promised, promised);
  if (promised) seq.tokens.push_back(7);
  allocator.name_blocks(seq, std::min(seq.ledger.num_computed(), seq.ledger.num_tokens()));
}

std::int32_t held(const Sequence& seq, std::int32_t group) {
  const Ids& blocks = seq.blocks[group];
  return static_cast<std::int32_t>(blocks.size() - std::count(blocks.begin(), blocks.end(), kNullBlock));
}

}  // namespace

TEST(allocator_refuses_groups_and_sizes_that_cannot_be) {
  const auto build = [](std::int32_t blocks, std::int32_t size, std::vector<GroupSpec> groups) {
    Allocator(blocks, size, std::move(groups), true, HashKind::kSha256Cbor);
  };
  CHECK_THROWS(InvalidField, (build(8, 0, {kFull}), 0));
  CHECK_THROWS(InvalidField, (build(1, 4, {kFull}), 0));
  CHECK_THROWS(InvalidField, (build(8, 4, {}), 0));
  CHECK_THROWS(InvalidField, (build(8, 4, {sliding(0)}), 0));
  CHECK_THROWS(InvalidField, (build(8, 4, {GroupSpec{GroupKind::kFull, 5}}), 0));
  CHECK_THROWS(InvalidField, (build(8, 4, {GroupSpec{static_cast<GroupKind>(7), 0}}), 0));
  CHECK_THROWS(InvalidField, (build(1 << 27, 32, {kFull}), 0));
}

TEST(allocator_gives_all_or_nothing_and_keeps_the_reserve) {
  Allocator allocator(7, 4, {kFull}, true, HashKind::kSha256Cbor);
  Sequence seq = make(16, allocator);
  CHECK_EQ(allocator.allocate(seq, 16, 9, nullptr, 0), 1);  // 7 blocks with the lookahead, 6 are there
  CHECK_EQ(allocator.allocate(seq, 16, 0, nullptr, 3), 1);
  CHECK_EQ(allocator.pool().num_used(), 0);
  CHECK(seq.blocks[0].empty());
  CHECK_EQ(allocator.allocate(seq, 16, 0, nullptr, 2), 0);
  CHECK_EQ(allocator.allocate(seq, 16, 0, nullptr, 6), 0);  // nothing new is needed: the reserve does not matter
  CHECK_EQ(allocator.free(seq), 4);
  CHECK_EQ(allocator.pool().num_used(), 0);
}

TEST(allocator_hit_leaves_one_token_and_is_block_aligned) {
  Allocator allocator(20, 4, {kFull}, true, HashKind::kSha256Cbor);
  Sequence first = make(16, allocator);
  compute(allocator, first, 16);
  allocator.free(first);
  for (std::int32_t length = 1; length <= 20; ++length) {
    Sequence again = make(length, allocator);
    CHECK_EQ(allocator.find_hit(again).num_tokens, std::min(16, (length - 1) / 4 * 4));
  }
  Sequence uncached = make(16, allocator);
  uncached.spec.reads_cache = false;
  CHECK_EQ(allocator.find_hit(uncached).num_tokens, 0);
}

TEST(allocator_hit_ends_where_a_block_was_forgotten) {
  Allocator allocator(20, 4, {kFull}, true, HashKind::kSha256Cbor);
  Sequence first = make(20, allocator);
  compute(allocator, first, 20);
  allocator.pool().forget(first.blocks[0][2]);
  Sequence again = make(20, allocator);
  const Hit hit = allocator.find_hit(again);
  CHECK_EQ(hit.num_tokens, 8);
  CHECK_EQ(hit.blocks[0].size(), 2u);
  CHECK(again.chain[0] == first.chain[0] && again.chain[1] == first.chain[1]);  // taken over, known by address
  CHECK(again.chain[2] != first.chain[2]);
}

TEST(allocator_hit_counts_free_blocks_as_taken) {
  Allocator allocator(6, 4, {kFull}, true, HashKind::kSha256Cbor);
  Sequence first = make(12, allocator);
  compute(allocator, first, 12);
  allocator.free(first);  // 5 free, 3 of them named
  Sequence again = make(20, allocator);
  const Hit hit = allocator.find_hit(again);
  CHECK_EQ(hit.num_tokens, 12);
  CHECK_EQ(allocator.allocate(again, 12, 0, &hit, 0), 1);  // three revived and three fresh
  CHECK_EQ(allocator.pool().num_used(), 0);
  CHECK_EQ(allocator.allocate(again, 8, 0, &hit, 0), 0);
  CHECK_EQ(allocator.pool().num_used(), 5);
}

TEST(allocator_releases_blocks_behind_a_window) {
  Allocator allocator(40, 4, {kFull, sliding(6)}, true, HashKind::kSha256Cbor);
  Sequence seq = make(33, allocator);
  compute(allocator, seq, 20);
  CHECK_EQ(held(seq, 1), 5);
  compute(allocator, seq, 1);  // position 20 sees 15..20: blocks 0..2 have been passed
  CHECK_EQ(seq.blocks[1][2], kNullBlock);
  CHECK(seq.blocks[1][3] != kNullBlock);
  CHECK_EQ(held(seq, 1), 3);
  CHECK_EQ(held(seq, 0), 6);
  CHECK_EQ(allocator.pool().num_used(), 9);
  CHECK_EQ(allocator.free(seq), 9);
}

TEST(allocator_does_not_release_what_a_rejected_draft_may_need_again) {
  Allocator allocator(40, 4, {sliding(5)}, true, HashKind::kSha256Cbor);
  Sequence seq = make(13, allocator);
  compute(allocator, seq, 12);  // positions 8..12 are visible to the next one
  CHECK_EQ(allocator.allocate(seq, 1, 4, nullptr, 0), 0);
  seq.ledger.advance(1, 0);  // in flight: optimistic progress must not move the window
  CHECK_EQ(allocator.allocate(seq, 4, 0, nullptr, 0), 0);
  CHECK(seq.blocks[0][2] != kNullBlock);
}

TEST(allocator_sliding_group_needs_only_the_tail_of_a_hit) {
  Allocator allocator(40, 4, {kFull, sliding(5)}, true, HashKind::kSha256Cbor);
  Sequence first = make(21, allocator);
  compute(allocator, first, 20);
  const Ids windowed = first.blocks[1];
  allocator.pool().forget(windowed[0]);
  Sequence again = make(21, allocator);
  Hit hit = allocator.find_hit(again);
  CHECK_EQ(hit.num_tokens, 20);
  CHECK_EQ(hit.blocks[1], (Ids{0, 0, 0, 0, windowed[4]}));  // position 20 sees 16..20
  allocator.pool().forget(windowed[4]);
  hit = allocator.find_hit(again);
  CHECK_EQ(hit.num_tokens, 16);  // no longer than the window's KV really held
  CHECK_EQ(hit.blocks[0].size(), 4u);
  CHECK_EQ(hit.blocks[1], (Ids{0, 0, 0, windowed[3]}));
  for (const BlockId block : windowed) allocator.pool().forget(block);
  CHECK_EQ(allocator.find_hit(again).num_tokens, 0);
}

TEST(allocator_hit_then_release_then_naming_goes_on) {
  Allocator allocator(60, 4, {kFull, sliding(5)}, true, HashKind::kSha256Cbor);
  Sequence first = make(17, allocator);
  compute(allocator, first, 17);
  allocator.free(first);
  Sequence again = make(41, allocator);
  const Hit hit = allocator.find_hit(again);
  CHECK_EQ(hit.num_tokens, 16);
  CHECK_EQ(allocator.allocate(again, 4, 0, &hit, 0), 0);
  again.ledger.start_at(16);
  compute(allocator, again, 4);
  compute(allocator, again, 20);
  CHECK_EQ(again.num_named[1], 10);
  allocator.free(again);
  CHECK_EQ(allocator.pool().num_used(), 0);
  Sequence third = make(41, allocator);
  CHECK_EQ(allocator.find_hit(third).num_tokens, 40);
}

TEST(allocator_groups_do_not_share_blocks) {
  Allocator allocator(40, 4, {kFull, kFull, sliding(9)}, true, HashKind::kSha256Cbor);
  Sequence seq = make(16, allocator);
  compute(allocator, seq, 16);
  Ids all;
  for (const Ids& blocks : seq.blocks) all.insert(all.end(), blocks.begin(), blocks.end());
  std::sort(all.begin(), all.end());
  CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
}

TEST(allocator_peak_blocks_and_capacity) {
  const Allocator full(33, 4, {kFull}, true, HashKind::kSha256Cbor);
  CHECK_EQ(full.peak_blocks(17, 8), 5);
  CHECK_EQ(full.capacity_tokens(8), 128);
  const Allocator mixed(33, 4, {kFull, sliding(9)}, true, HashKind::kSha256Cbor);
  CHECK_EQ(mixed.peak_blocks(4, 8), 2);
  CHECK_EQ(mixed.peak_blocks(100, 8), 25 + 5);  // ceil((8 + 8) / 4) + 1
  CHECK_EQ(mixed.capacity_tokens(8), 108);
  CHECK_EQ(mixed.peak_blocks(108, 8), 32);
}

// The longest prefix valid in every group, found by trying all lengths, is what find_hit finds.
TEST(allocator_hits_equal_an_exhaustive_search) {
  std::mt19937 random(3);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  for (int round = 0; round < 300; ++round) {
    std::vector<GroupSpec> groups;
    for (int g = 0, n = 1 + below(3); g < n; ++g) groups.push_back(below(2) ? kFull : sliding(1 + below(14)));
    Allocator allocator(200, 4, groups, true, HashKind::kSha256Cbor);
    Sequence first = make(33 + below(8), allocator);
    compute(allocator, first, 33);
    std::vector<std::vector<bool>> there(groups.size(), std::vector<bool>(8, true));
    for (std::size_t g = 0; g < groups.size(); ++g)
      for (int i = 0; i < 8; ++i)
        if (below(4) == 0) there[g][i] = false, allocator.pool().forget(first.blocks[g][i]);
    std::int32_t best = 0;
    for (std::int32_t length = 1; length <= 8; ++length) {
      bool usable = true;
      for (std::size_t g = 0; g < groups.size(); ++g)
        for (int i = 0; i < length; ++i) {
          const bool seen = groups[g].kind == GroupKind::kFull || (i + 1) * 4 > length * 4 - groups[g].window + 1;
          usable = usable && (!seen || there[g][i]);
        }
      if (usable) best = length;
    }
    Sequence again = make(33, allocator);
    const Hit hit = allocator.find_hit(again);
    CHECK_EQ(hit.num_tokens, best * 4);
    for (const Ids& blocks : hit.blocks) CHECK_EQ(static_cast<std::int32_t>(blocks.size()), best);
  }
}

// No computation ever needs a block that the allocator no longer holds, and the peak is never exceeded.
TEST(allocator_windows_are_whole_in_every_step) {
  std::mt19937 random(4);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  for (int round = 0; round < 200; ++round) {
    const std::int32_t window = 1 + below(20), slice = 1 + below(9);
    Allocator allocator(100, 4, {sliding(window)}, true, HashKind::kSha256Cbor);
    Sequence seq = make(100, allocator);
    while (seq.ledger.num_computed() < 90) {
      const std::int32_t start = seq.ledger.num_computed(), count = 1 + below(slice);
      compute(allocator, seq, count);
      for (std::int32_t p = std::max(0, start - window + 1); p < start + count; ++p)
        CHECK(seq.blocks[0][p / 4] != kNullBlock);
      CHECK(held(seq, 0) <= allocator.peak_blocks(100, slice));
    }
  }
}
