"""Pieces of the V4.1 program by themselves: what a whole-model comparison is too coarse, or too lucky, to see."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paged_runner import PagedRunner
from v41_config import CONFIG, dummy_model, text

from headrace.api.text.engram_map import normalised
from headrace.contract.errors import ConfigError
from headrace.contract.layout import KVGroup, KVKind, RecordLayout
from headrace.kernels.resolve import resolve_ops
from headrace.kernels.selection import best_blocks, best_entries, entries_of, members
from headrace.models.deepseek_v41.attention import attend
from headrace.models.deepseek_v41.config import derive_v41
from headrace.models.deepseek_v41.config_parts import EngramConfig, MoEConfig
from headrace.models.deepseek_v41.engram_hash import IMAGE, ngrams, table_primes
from headrace.models.deepseek_v41.experts import choose_experts
from headrace.models.deepseek_v41.layer import run_layer
from headrace.models.deepseek_v41.mixing import Mix, balance, collapse, first_pre, write_back
from headrace.models.deepseek_v41.records import Records, kv_layout

# -- selection --------------------------------------------------------------------------------------------------------


def visible(*counts: int) -> torch.Tensor:
    return torch.tensor(counts)


def test_ties_go_to_the_lower_entry() -> None:
    scores = torch.tensor([[0.0, 2.0, 0.0, 2.0, 0.0, 1.0]])
    assert best_entries(scores, visible(6), 4).tolist() == [[0, 1, 3, 5]]


def test_entries_to_come_are_never_chosen_however_good() -> None:
    scores = torch.tensor([[1.0, 0.0, 9.0, 9.0], [1.0, 0.0, 9.0, 9.0], [1.0, 0.0, 9.0, 9.0]])
    assert best_entries(scores, visible(0, 2, 3), 2).tolist() == [[-1, -1], [0, 1], [0, 2]]


def test_zero_and_negative_scores_fill_up_before_nothing_does() -> None:
    scores = torch.tensor([[-3.0, 0.0, -1.0]])
    assert best_entries(scores, visible(3), 5).tolist() == [[0, 1, 2, -1, -1]]


@given(st.integers(1, 30), st.integers(1, 12), st.integers(0, 10_000))
def test_the_choice_is_the_sorted_one_and_does_not_depend_on_what_is_to_come(n: int, count: int, seed: int) -> None:
    scores = torch.randint(0, 5, (1, n), generator=torch.Generator().manual_seed(seed)).float()
    for seen in range(n + 1):
        chosen = [i for i in best_entries(scores, visible(seen), count)[0].tolist() if i >= 0]
        ranked = sorted(range(seen), key=lambda i: (-scores[0, i].item(), i))[:count]
        assert chosen == sorted(ranked)
        assert torch.equal(
            best_entries(scores[:, :seen], visible(seen), count)[:, : len(chosen)][0], torch.tensor(chosen)
        )


def test_the_last_visible_block_is_always_a_candidate() -> None:
    scores = torch.tensor([[5.0, 0, 9, 0, 7, 0, 0, 0, 8]])
    assert best_blocks(scores, visible(9), 2, 2).tolist() == [[1, 4]]  # the last, then entry 2's
    assert best_blocks(scores, visible(7), 2, 2).tolist() == [[1, 3]]  # entry 6 alone is the last block, score 0
    assert best_blocks(scores, visible(1), 2, 2).tolist() == [[0, -1]]
    assert best_blocks(scores, visible(0), 2, 2).tolist() == [[-1, -1]]


def test_entries_of_candidate_blocks() -> None:
    """The worked example: blocks 0 and 3 of 8 entries, 29 visible: 8 + 5 entries, the 10th is 25, the 13th is 28."""
    held = entries_of(torch.tensor([[0, 3, -1]]), 8, 29)[0].nonzero().squeeze(1)
    assert len(held) == 13
    assert (held[9], held[12]) == (25, 28)


def test_members_of_lists() -> None:
    lists = torch.tensor([[0, 2, -1], [-1, -1, -1]])
    assert members(lists, 4).tolist() == [[True, False, True, False], [False] * 4]


@torch.inference_mode()
def test_index_layers_after_the_source_stay_inside_its_blocks() -> None:
    """Through the program. 150 entries are 19 blocks, of which 8 are candidates: the source itself leaves them."""
    of = dummy_model()
    chosen: dict[int, torch.Tensor] = {}
    step = of.begin(PagedRunner(of, of.arithmetic.ops, 1, 150).context({0: list(range(150))}))
    trunk, pre = of.spread(of.embed(torch.arange(150, dtype=torch.int32)))
    for layer, params in enumerate(of.params.layers):
        trunk, pre = run_layer(step, layer, params, trunk, pre)
        chosen[layer] = torch.empty(0) if step.selected is None else members(step.selected, 150)
    held = entries_of(step.candidates, 8, 150)
    assert (chosen[4] & ~held).any()
    assert not (chosen[6] & ~held).any()
    assert torch.equal(chosen[7], chosen[6])
    assert not torch.equal(chosen[6], chosen[4])


# -- attention --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_attention_with_a_sink_against_the_plain_formula(backend: str) -> None:
    generator = torch.Generator().manual_seed(4)
    query, keys = torch.randn(3, 2, 32, generator=generator), torch.randn(9, 32, generator=generator)
    seen = torch.rand(3, 9, generator=generator) < 0.6
    seen[:, 0] = True
    sink = torch.tensor([0.5, 3.0])
    out = attend(resolve_ops(backend), query, keys, seen, sink)
    for t in range(3):
        for head in range(2):
            mine = keys[seen[t]]
            weights = torch.exp(mine @ query[t, head] * 32**-0.5)
            assert torch.allclose(out[t, head], weights @ mine / (weights.sum() + sink[head].exp()), atol=1e-5)


def test_keys_that_nobody_sees_change_no_bit() -> None:
    generator = torch.Generator().manual_seed(5)
    query, keys = torch.randn(1, 8, 512, generator=generator), torch.randn(40, 512, generator=generator)
    ops, sink = resolve_ops("cpu", strict=True), torch.zeros(8)
    few = attend(ops, query, keys[10:13], torch.ones(1, 3, dtype=torch.bool), sink)
    seen = torch.zeros(1, 40, dtype=torch.bool)
    seen[0, 10:13] = True
    assert torch.equal(attend(ops, query, keys, seen, sink), few)


# -- mixing -----------------------------------------------------------------------------------------------------------


def test_the_first_sub_layer_reads_stream_0() -> None:
    trunk = torch.arange(24.0).view(2, 4, 3)
    assert torch.equal(collapse(trunk, first_pre(2, 4)), trunk[:, 0])


def test_the_mixing_matrix_is_summed_over_sources() -> None:
    """Nearly doubly stochastic, it hides a transposition: here it is not."""
    trunk = torch.tensor([[[1.0], [10.0], [100.0], [1000.0]]])
    comb = torch.zeros(1, 4, 4)
    comb[0, 3, 0] = 1.0  # from stream 3 to stream 0
    mix = Mix(torch.zeros(1, 4), torch.tensor([[0.0, 2.0, 0.0, 0.0]]), comb)
    assert write_back(trunk, torch.tensor([[5.0]]), mix).flatten().tolist() == [1000.0, 10.0, 0.0, 0.0]


def test_balanced_matrices_have_sums_of_one() -> None:
    logits = torch.randn(6, 4, 4, generator=torch.Generator().manual_seed(6)) * 2
    x = balance(logits, 20, 1e-6)
    assert torch.allclose(x.sum(1), torch.ones(6, 4), atol=1e-5)
    assert torch.allclose(x.sum(2), torch.ones(6, 4), atol=1e-3)
    assert not torch.allclose(balance(logits, 1, 1e-6).sum(2), torch.ones(6, 4), atol=1e-2)


# -- experts ----------------------------------------------------------------------------------------------------------


def test_bias_decides_who_is_chosen_and_not_with_what_weight() -> None:
    moe = MoEConfig(3, 2, 32, 1.5)
    logits, bias = torch.tensor([[1.0, 0.0, -1.0]]), torch.tensor([[0.0, 0.0, 5.0]])
    chosen, weights = choose_experts(logits, bias, moe)
    scores = torch.nn.functional.softplus(logits[0]).sqrt()
    assert chosen.tolist() == [[0, 2]]
    assert torch.allclose(weights[0], 1.5 * scores[[0, 2]] / (scores[0] + scores[2]))


def test_equal_experts_go_to_the_lower_numbers() -> None:
    chosen, weights = choose_experts(torch.zeros(1, 5), torch.zeros(1, 5), MoEConfig(5, 2, 32, 1.5))
    assert chosen.tolist() == [[0, 1]]
    assert torch.allclose(weights, torch.full((1, 2), 0.75))


def test_large_gate_logits_do_not_overflow() -> None:
    _, weights = choose_experts(torch.tensor([[200.0, -200.0]]), torch.zeros(1, 2), MoEConfig(2, 2, 32, 1.0))
    assert torch.allclose(weights, torch.tensor([[1.0, 0.0]]), atol=1e-6)


# -- Engram -----------------------------------------------------------------------------------------------------------


def test_ngrams_before_the_start_and_over_a_picture() -> None:
    ids = torch.tensor([5, 6, IMAGE, 7, 8])
    grams = ngrams(ids[:0], ids, pad=0, longest=3)
    assert grams[[0, 1, 3, 4]].tolist() == [[5, 0, 0], [6, 5, 0], [7, 0, 0], [8, 7, 0]]


@given(st.integers(0, 6))
def test_ngrams_do_not_depend_on_where_a_prompt_is_cut(cut: int) -> None:
    ids = torch.tensor([3, 1, IMAGE, 4, 1, 5])
    whole = ngrams(ids[:0], ids, pad=9, longest=4)
    parts = ngrams(ids[:0], ids[:cut], 9, 4), ngrams(ids[max(0, cut - 3) : cut], ids[cut:], 9, 4)
    assert torch.equal(torch.cat(parts), whole)


def test_table_rows_of_the_released_model() -> None:
    released = EngramConfig((1, 14), 4, 16_000_000, 8, 256, 2, ())
    assert [sum(primes) for primes in table_primes(released)] == [384_006_168, 384_016_682]


@pytest.mark.parametrize(
    ("spelling", "key"),
    [
        ("Ünïcode", "unicode"),
        ("  Ab \n\t c ", "ab c"),
        ("ﬁ", "fi"),
        (" ", " "),
        ("\n\n", " "),
        ("\u0301", ""),
        ("Ａ", "a"),
    ],
)
def test_tokens_that_read_alike(spelling: str, key: str) -> None:
    assert normalised(spelling) == key


# -- records ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [2, 4, 32, 128])
def test_sections_of_a_group_do_not_overlap_and_fit_the_block(block_size: int) -> None:
    config = derive_v41(CONFIG)
    layout, records = kv_layout(config), Records(config, block_size)
    tables = (records.kv, records.index_codes, records.index_scales, records.window, records.open)
    sections = [records.ids, *(section for table in tables for section in table.values())]
    taken: set[tuple[int, int]] = set()
    for section in sections:
        span = {(section.group, section.offset + i) for i in range(section.rows * section.width)}
        assert not span & taken
        assert section.offset + section.rows * section.width <= layout.block_bytes(block_size)
        taken |= span


def test_bytes_of_the_released_model() -> None:
    """890 bytes per token of compressed KV and index keys, 528 per window record; a group for each of both."""
    released = copy.deepcopy(CONFIG)
    released["text_config"] |= {
        "num_hidden_layers": 40,
        "compress_ratios": [0, 0] + [2] * 18 + [1] * 20 + [0] * 3,
        "kv_source_layer_ids": [2, 8, 14, 20],
        "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
        "candidate_source_layer_id": 20,
        "num_nextn_predict_layers": 3,
        "dspark_target_layer_ids": [37, 38, 39],
        "engram_layer_ids": [1, 14],
    }
    layout = kv_layout(derive_v41(released))
    assert layout.token_bytes == (890, *[528] * 40, 4, 0, 0)
    assert [group.window for group in layout.groups] == [0, *[128] * 40, 4, 4, 4]
    assert [layout.block_bytes(size) for size in (32, 128)] == [890 * 32, 890 * 128]  # nothing is wasted on the rest
    released["text_config"]["use_fp4_sparse_kv"] = False
    assert kv_layout(derive_v41(released)).block_bytes(128) == 190_720


def test_blocks_hold_pairs() -> None:
    with pytest.raises(ConfigError, match="block_size"):
        kv_layout(derive_v41(CONFIG)).block_bytes(5)


def test_block_bytes_are_those_of_the_widest_group() -> None:
    group = KVGroup(KVKind.FULL, 0, (0,))
    layout = RecordLayout((group, group), (3, 2), (0, 9), 1)
    assert [layout.block_bytes(size) for size in (1, 4, 9, 10)] == [11, 20, 27, 30]


def test_look_back_covers_the_longest_ngram() -> None:
    assert kv_layout(derive_v41(text(engram_max_ngram_size=6))).groups[-1].window == 6
    assert kv_layout(derive_v41(text(engram_layer_ids=[]))).groups[-1].window == 2
