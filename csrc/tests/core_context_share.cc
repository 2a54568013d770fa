// Prompt steps that context-parallel ranks share: together they compute and keep every position once.
#include "tests/core_pack_plan.h"

using namespace headrace::core;
using namespace headrace::testing;

namespace {

Ints numbers(std::int32_t count) {
  Ints out(count);
  for (std::int32_t i = 0; i < count; ++i) out[i] = 100 + i;
  return out;
}

// Three prompts in blocks of 4, the second in the midst of its prompt, the third of one token.
Plan prompts(StepKind kind = StepKind::kPrefill) {
  Plan plan;
  plan.slice(1, 8, 0, {1, 2}).fresh(numbers(8)).slice(2, 7, 5, {3, 4, 5}).fresh(numbers(12)).slice(3, 1, 4, {6, 7});
  plan.fresh(numbers(5)), plan.kind = kind;
  return plan;
}

Batch packed(const Plan& plan, ContextShare share) {
  RowTable rows(4, 1, share);
  rows.apply(plan.view());
  return Batch(rows, plan, share.size > 1 && plan.kind == StepKind::kPrefill);
}

std::string refused(const Plan& plan) {
  try {
    packed(plan, {2, 0});
  } catch (const InvalidField& error) {
    const std::string text = error.what();
    return text.substr(0, text.find(':'));
  }
  return "nothing";
}

}  // namespace

TEST(share_ranks_take_positions_to_and_fro) {
  const ContextShare share{3, 1};
  Ints owners, before;
  for (std::int32_t p = 0; p < 9; ++p) owners.push_back(share.owner(p)), before.push_back(share.owned_before(p, 1));
  CHECK_EQ(owners, (Ints{0, 1, 2, 2, 1, 0, 0, 1, 2}));
  CHECK_EQ(before, (Ints{0, 0, 1, 1, 1, 2, 2, 2, 3}));
  CHECK(share.owns(4) && !share.owns(5));
  CHECK_EQ(share.rows(1), 2), CHECK_EQ(share.rows(6), 2), CHECK_EQ(share.rows(7), 4);
}

TEST(share_of_an_aligned_slice_is_the_same_work) {
  for (std::int32_t size = 1; size <= 5; ++size) {
    for (std::int32_t start = 0; start < 3 * size; ++start) {
      std::vector<std::int32_t> rows(size), keys(size);
      const ContextShare share{size, 0};
      for (std::int32_t p = start; p < start + 4 * size; ++p) rows[share.owner(p)] += 1, keys[share.owner(p)] += p + 1;
      for (std::int32_t rank = 0; rank < size; ++rank) {
        CHECK_EQ(rows[rank], 4);
        if (start % (2 * size) == 0) CHECK_EQ(keys[rank], keys[0]);
      }
    }
  }
}

TEST(share_by_example) {
  const Batch zero = packed(prompts(), {2, 0}), one = packed(prompts(), {2, 1});
  // Slices of 8, 7 and 1 rows: 4, 4 and 2 on each rank.
  CHECK_EQ(zero.positions, (Ints{0, 3, 4, 7, 7, 8, 11, 0, 4, 0})), CHECK_EQ(zero.query_start_loc, (Ints{0, 4, 8, 10}));
  CHECK_EQ(one.positions, (Ints{1, 2, 5, 6, 5, 6, 9, 10, 0, 0})), CHECK_EQ(one.query_start_loc, (Ints{0, 4, 8, 10}));
  CHECK_EQ(zero.input_ids, (Ints{100, 103, 104, 107, 107, 108, 111, 0, 104, 0}));
  CHECK_EQ(one.input_ids, (Ints{101, 102, 105, 106, 105, 106, 109, 110, 0, 0}));
  CHECK_EQ(one.request_index, (Ints{0, 0, 0, 0, 1, 1, 1, 1, 2, 2}));
  CHECK_EQ(zero.slots, (Ints{4, -1, -1, 7, 8, -1, -1, 11, -1, -1, 19, 20, -1, -1, 23, 28}));
  CHECK_EQ(one.slots, (Ints{-1, 5, 6, -1, -1, 9, 10, -1, 17, 18, -1, -1, 21, 22, -1, -1}));
  CHECK_EQ(zero.logits_indices, (Ints{3, 6, 8})), CHECK_EQ(one.logits_indices, Ints{});
  CHECK_EQ(zero.gather_index, (Ints{0, 10, 11, 1, 2, 12, 13, 3, 14, 15, 4, 5, 16, 17, 6, 8}));
  CHECK_EQ(one.gather_index, zero.gather_index), CHECK_EQ(one.seq_lens, (Ints{8, 12, 5}));
}

TEST(share_ranks_together_have_the_whole_step) {
  const Batch whole = packed(prompts(), {});
  for (std::int32_t size = 2; size <= 7; ++size) {
    Ints ids, positions, logits_of, slots(whole.slots.size(), kForeignSlot), index;
    for (std::int32_t rank = 0; rank < size; ++rank) {
      const Batch part = packed(prompts(), {size, rank});
      ids.insert(ids.end(), part.input_ids.begin(), part.input_ids.end());
      positions.insert(positions.end(), part.positions.begin(), part.positions.end());
      for (const std::int32_t row : part.logits_indices) logits_of.push_back(part.request_index[row]);
      for (std::size_t w = 0; w < slots.size(); ++w) {
        CHECK(part.slots[w] == kForeignSlot || slots[w] == kForeignSlot);  // nobody else keeps it
        if (part.slots[w] != kForeignSlot) slots[w] = part.slots[w];
      }
      CHECK_EQ(part.tables, whole.tables), CHECK_EQ(part.discard, whole.discard);
      index = part.gather_index;
    }
    CHECK_EQ(slots, whole.slots);
    for (std::size_t w = 0; w < index.size(); ++w) {
      CHECK_EQ(positions[index[w]], whole.positions[w]), CHECK_EQ(ids[index[w]], whole.input_ids[w]);
    }
    std::sort(index.begin(), index.end()), std::sort(logits_of.begin(), logits_of.end());
    CHECK(std::adjacent_find(index.begin(), index.end()) == index.end());
    CHECK_EQ(logits_of, (Ints{0, 1, 2}));
  }
}

TEST(share_leaves_decode_steps_alone) {
  const Batch whole = packed(prompts(), {}), part = packed(prompts(StepKind::kDecode), {4, 3});
  CHECK_EQ(part.input_ids, whole.input_ids), CHECK_EQ(part.positions, whole.positions);
  CHECK_EQ(part.slots, whole.slots), CHECK_EQ(part.logits_indices, whole.logits_indices);
  CHECK_EQ(part.query_start_loc, whole.query_start_loc), CHECK_EQ(part.gather_index, Ints{});
}

TEST(share_refuses_what_ranks_cannot_share) {
  CHECK_THROWS(InvalidField, RowTable(4, 1, {0, 0}));
  CHECK_THROWS(InvalidField, RowTable(4, 1, {2, 2}));
  CHECK_THROWS(InvalidField, RowTable(4, 1, {2, -1}));
  CHECK_EQ(refused(prompts(StepKind::kMixed)), std::string("kind"));
  Plan drafts = prompts();
  drafts.slice(4, 3, 1, {8}).fresh({1, 2}).drafts({3, 4});
  CHECK_EQ(refused(drafts), std::string("num_drafts"));
  Plan unknown = prompts();
  unknown.slice(5, 2, 1, {8}).fresh({1, 2});
  CHECK_EQ(refused(unknown), std::string("num_scheduled"));  // by rank 0, which has no part of it
}
