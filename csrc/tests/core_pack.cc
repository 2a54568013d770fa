// Rows and packing: plans from elsewhere are checked, drafts and unknown tokens land in place.
#include "tests/core_pack_plan.h"

using namespace headrace::core;
using namespace headrace::testing;

TEST(pack_drafts_and_tokens_still_being_sampled) {
  RowTable rows(4, 1);
  Plan plan;
  plan.slice(1, 2, 2, {5}).fresh({10, 11, 12});  // position 3 is being sampled by a step in flight
  plan.slice(2, 3, 1, {6}).fresh({20, 21}).drafts({30, 31});
  rows.apply(plan.view());
  const Batch batch(rows, plan);
  CHECK_EQ(batch.input_ids, (Ints{12, kUnknownToken, 21, 30, 31}));
  CHECK_EQ(batch.logits_indices, (Ints{1, 2, 3, 4}));
  CHECK_EQ(batch.slots, (Ints{22, 23, 25, 26, 27}));
}

TEST(pack_previous_places_survive_shuffles_joins_and_leaves) {
  RowTable rows(4, 1);
  Plan first;
  first.slice(1, 1, 0, {1}).fresh({1, 2, 3}).slice(2, 1, 0, {2}).fresh({1, 2, 3}).slice(3, 1, 0, {3}).fresh({1, 2, 3});
  rows.apply(first.view());
  CHECK_EQ(Batch(rows, first).prev_positions, (Ints{-1, -1, -1}));
  Plan second;
  second.slice(3, 1, 1, {}, 1).slice(4, 1, 0, {4}).fresh({9, 9}).slice(1, 1, 1, {}, 1);
  second.dropped = {2};
  rows.apply(second.view());
  CHECK_EQ(Batch(rows, second).prev_positions, (Ints{2, -1, 0}));
  CHECK_EQ(rows.size(), 3u);
  Plan third;  // 1 sat out a step; 3 was dropped and comes back as a new row
  third.dropped = {3};
  third.slice(3, 1, 0, {7}).fresh({5, 6});
  rows.apply(third.view());
  CHECK_EQ(Batch(rows, third).prev_positions, (Ints{-1}));
  Plan fourth;
  fourth.slice(1, 1, 2, {}, 1);
  rows.apply(fourth.view());
  CHECK_EQ(Batch(rows, fourth).prev_positions, (Ints{-1}));
}

TEST(pack_appended_tokens_become_inputs) {
  RowTable rows(4, 1);
  Plan plan;
  plan.slice(1, 2, 0, {1}).fresh({1, 2});
  rows.apply(plan.view());
  rows.append(1, Ints{3});
  rows.append(99, Ints{3});  // dropped meanwhile
  Plan next;
  next.slice(1, 1, 2, {}, 1);
  rows.apply(next.view());
  CHECK_EQ(Batch(rows, next).input_ids, (Ints{3}));
}

TEST(pack_refuses_a_plan_that_does_not_fit_and_changes_nothing) {
  RowTable rows(4, 1);
  Plan good;
  good.slice(1, 2, 0, {1}).fresh({1, 2});
  rows.apply(good.view());
  const auto refused = [&](auto spoil) {
    Plan plan;
    plan.dropped = {1};
    plan.slice(2, 2, 0, {2}).fresh({1, 2});
    spoil(plan);
    CHECK_THROWS(InvalidField, rows.apply(plan.view()));
    CHECK_EQ(rows.size(), 1u);
    CHECK(rows.tokens(1) != nullptr);
  };
  refused([](Plan& p) { p.slice(3, 1, 0, {3}); });    // never introduced
  refused([](Plan& p) { p.slice(1, 1, 1, {}, 1); });  // just dropped
  refused([](Plan& p) { p.slice(2, 1, 1, {}, 0); });  // twice
  refused([](Plan& p) { p.block_starts[0] = 1; });    // a gap
  refused([](Plan& p) { p.block_starts[0] = -1; });
  refused([](Plan& p) { p.block_offsets[1] = 9; });
  refused([](Plan& p) { p.block_offsets = {0, -1}; });
  refused([](Plan& p) { p.block_ids[0] = -1; });
  refused([](Plan& p) { p.block_ids[0] = 1 << 30; });  // its slots would not be 32-bit
  refused([](Plan& p) { p.fresh_slices[0] = -1; });
  refused([](Plan& p) { p.fresh_slices[0] = 1; });
  refused([](Plan& p) { p.fresh_offsets[1] = 3; });
  refused([](Plan& p) { p.num_scheduled[0] = 0; });
  refused([](Plan& p) { p.num_computed[0] = -1; });
  refused([](Plan& p) { p.num_computed.clear(); });
  refused([](Plan& p) { p.num_drafts[0] = 2; });
  refused([](Plan& p) { p.num_drafts[0] = 1; });  // draft tokens missing
}

TEST(pack_refuses_writes_to_blocks_not_held) {
  RowTable rows(4, 1);
  Plan plan;
  plan.slice(1, 5, 0, {1}).fresh({1, 2, 3, 4, 5});
  rows.apply(plan.view());
  CHECK_THROWS(InvalidField, Batch(rows, plan));  // beyond the table
  Plan windowed;
  windowed.slice(2, 1, 3, {kNullBlock, 2}).fresh({1, 2, 3, 4});
  rows.apply(windowed.view());
  CHECK_THROWS(InvalidField, Batch(rows, windowed));  // behind the window
}

TEST(pack_refuses_buffers_of_other_sizes_and_silly_tables) {
  CHECK_THROWS(InvalidField, RowTable(0, 1));
  CHECK_THROWS(InvalidField, RowTable(4, 0));
  RowTable rows(4, 1);
  Plan plan;
  plan.slice(1, 2, 0, {1}).fresh({1, 2});
  rows.apply(plan.view());
  Batch batch(rows, plan);
  batch.slots.pop_back();
  CHECK_THROWS(InvalidField, rows.pack(plan.view(), batch.buffers()));
}

TEST(pack_unknown_tokens_are_the_last_of_their_slice_and_were_sampled_before) {
  const Ints starts{0, 2, 2, 3}, previous{1, 0, 0}, last{40, 41};
  Ints ids{7, kUnknownToken, kUnknownToken};
  fill_unknown(ids, starts, previous, last);
  CHECK_EQ(ids, (Ints{7, 41, 40}));
  Ints vain{7, kUnknownToken, kUnknownToken};
  fill_unknown(vain, starts, previous, Ints{kNothingDrawn, 41});
  CHECK_EQ(vain, (Ints{7, 41, 0}));  // the row of a sequence that ends: any id, and no fault of its neighbours'
  for (const auto& [rows, before] : {std::pair{Ints{kUnknownToken, 5, 6}, previous},       // not the last
                                     std::pair{Ints{7, 8, kUnknownToken}, Ints{1, 0, 2}},  // nobody's
                                     std::pair{Ints{7, 8, kUnknownToken}, Ints{1, 0, -1}}}) {
    Ints broken = rows;
    CHECK_THROWS(InvalidField, fill_unknown(broken, starts, before, last));
    CHECK_EQ(broken, rows);
  }
}
