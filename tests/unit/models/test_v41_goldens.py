"""The V4.1 program against outside goldens, piece by piece first and tightly, then the whole model by its median row.

The order and the limits are those of the data's README. The model has steps (rounding, top-k, experts), so a whole
model within its limit proves little, and a single row beyond it proves nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
import torch
from paged_runner import PagedRunner, greedy
from torch import Tensor
from v41_data import PROMPTS, VARIANTS, Goldens, folder, goldens, median_row, model

from headrace.api.text.engram_map import engram_map
from headrace.api.text.tokenizer import load_tokenizer
from headrace.models.deepseek_v41.attention import query_latent
from headrace.models.deepseek_v41.draft_context import context_records
from headrace.models.deepseek_v41.drafting import DraftBlock, draft_block
from headrace.models.deepseek_v41.engram import add_engram
from headrace.models.deepseek_v41.engram_hash import table_rows
from headrace.models.deepseek_v41.experts import choose_experts
from headrace.models.deepseek_v41.forward import V41Model
from headrace.models.deepseek_v41.indexing import choose, index_keys, index_query, is_candidate_source
from headrace.models.deepseek_v41.layer import run_layer
from headrace.models.deepseek_v41.mixing import collapse
from headrace.models.deepseek_v41.params import LayerParams
from headrace.models.deepseek_v41.quantise import decode_e4m3, pack_mxfp4, pack_mxfp8, unpack_kv4, unpack_mxfp4
from headrace.models.deepseek_v41.step import Step
from headrace.models.deepseek_v41.vision import picture_features, place_picture

BACKENDS = ("cpu", "reference")
SHORT, SELECTED = ("p0", "p1"), ("p1", "p2", "p3")
ONE_LAYER, SHARE = 1e-4, 0.999
TIE, MOST_TIES = 4e-6, 8  # relative distance from a rounding boundary; of so many values in one layer
Pair = tuple[Tensor, Tensor]


class Tie(NamedTuple):
    """One value of the ``call``-th window record."""

    call: int
    row: int
    column: int


pytestmark = pytest.mark.parametrize("variant", VARIANTS)


@pytest.fixture(autouse=True)
def _no_gradients() -> object:
    with torch.inference_mode():
        yield


def begin(of: V41Model, ids: list[int]) -> Step:
    runner = PagedRunner(of, of.arithmetic.ops, 1, len(ids), block_size=32)
    return of.begin(runner.context({0: ids}))


def logits(of: V41Model, ids: list[int]) -> Tensor:
    return PagedRunner(of, of.arithmetic.ops, 1, len(ids), block_size=32).logits({0: ids})[0]


# -- exactly equal ----------------------------------------------------------------------------------------------------


def test_the_token_map_and_its_digest(variant: str) -> None:
    compressed = engram_map(load_tokenizer(folder(variant)))
    assert compressed.tolist() == goldens(variant)["engram.token_map"].tolist()
    digest = hashlib.sha256(compressed.astype("<i4").tobytes()).hexdigest()
    assert digest == goldens(variant).stated["engram_token_map_sha256"]
    assert model(variant).kv_facts() == [("token map", digest)]


def test_engram_primes_offsets_and_multipliers(variant: str) -> None:
    config = model(variant).config
    assert config.engram is not None
    for number, layer in enumerate(config.engram.layers):
        engram = model(variant).params.layers[layer].engram
        assert engram is not None
        for name in ("primes", "offsets", "multipliers"):
            assert torch.equal(getattr(engram.hash, name), goldens(variant)[f"engram.{name}"][number]), (layer, name)


@pytest.mark.parametrize("prompt", [*PROMPTS, "image"])
def test_engram_rows(variant: str, prompt: str) -> None:
    """Through the model's own step, look-back over a picture included."""
    g, of = goldens(variant), model(variant)
    step = begin(of, g.ids(prompt))
    assert of.config.engram is not None
    for number, layer in enumerate(of.config.engram.layers):
        engram = of.params.layers[layer].engram
        assert engram is not None
        rows = table_rows(step.grams, engram.hash, of.config.engram.num_heads)
        text = ~step.image_rows
        assert torch.equal(rows[text], g[f"{prompt}.engram_rows"][:, number].long()[text])


@pytest.mark.parametrize("prompt", SHORT)
def test_experts_chosen_from_the_stored_trunk(variant: str, prompt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    g, chosen = goldens(variant), []

    def spy(*args: object) -> tuple[Tensor, Tensor]:
        chosen.append(choose_experts(*args))  # type: ignore[arg-type]
        return chosen[-1]

    monkeypatch.setattr("headrace.models.deepseek_v41.experts.choose_experts", spy)
    run_layers(model(variant), g, prompt)
    for layer, (numbers, weights) in enumerate(chosen):
        assert torch.equal(numbers, g[f"{prompt}.moe_experts"][layer].long()), layer
        assert close_share(weights, g[f"{prompt}.moe_weights"][layer]) >= SHARE, layer


@pytest.mark.parametrize("prompt", SELECTED)
def test_selection_from_the_stored_keys_and_queries(variant: str, prompt: str) -> None:
    """The index query out of the stored trunk, against the stored keys: the same entries and candidate blocks."""
    g, of = goldens(variant), model(variant)
    topology, positions = of.config.topology, g[f"{prompt}.index_positions"].long()
    step = at_positions(begin(of, g.ids(prompt)), positions)
    blocks = torch.empty(0)
    for number, layer in enumerate(g.stated["index_source_layers"]):
        hidden = normed_at(
            of, step, layer, g[f"{prompt}.index_query_trunk"][number], g[f"{prompt}.index_query_premix"][number]
        )
        params = of.params.layers[layer]
        latent = query_latent(step, params.attention, hidden)
        query, weights = index_query(step, params, latent, hidden, positions)
        store_index_keys(step, layer, g[f"{prompt}.index_keys.{topology.index_key_sources[layer]}"].float())
        among = blocks if topology.chooses_among_candidates(layer) else None
        rows = torch.tensor([0, len(positions)], dtype=torch.int32)
        choice = choose(step, layer, query, weights, positions, rows, among)
        assert torch.equal(choice.entries.long(), g[f"{prompt}.index_topk"][number].long()), layer
        if is_candidate_source(step, layer):
            blocks, want = choice.blocks, g[f"{prompt}.candidate_blocks"]
            assert torch.equal(blocks[:, : want.shape[1]].long(), want.long())
            assert (blocks[:, want.shape[1] :] == -1).all()


def store_index_keys(step: Step, layer: int, keys: Tensor) -> None:
    """Puts ``keys`` (n, index_dim) where the layer's choice reads them. They fit their format: nothing is rounded."""
    source, rows = step.config.topology.index_key_sources[layer], torch.arange(len(keys))
    codes, scales = pack_mxfp4(keys)
    assert torch.equal(unpack_mxfp4(codes, scales), keys)
    step.pages.write(step.records.index_codes[source], torch.zeros_like(rows), rows, codes)
    step.pages.write(step.records.index_scales[source], torch.zeros_like(rows), rows, scales)


def at_positions(step: Step, positions: Tensor) -> Step:
    """Rows of a prompt's step, for functions that work row by row."""
    return dataclasses.replace(
        step, positions=positions, grams=step.grams[positions], image_rows=step.image_rows[positions]
    )


def normed_at(of: V41Model, step: Step, layer: int, trunk: Tensor, pre: Tensor) -> Tensor:
    params = of.params.layers[layer]
    if params.engram is not None:
        trunk = add_engram(step, params.engram, trunk)
    return of.arithmetic.norm(collapse(trunk, pre), params.attention_norm, of.config.norm_eps)


# -- one layer from the stored trunk ----------------------------------------------------------------------------------


def run_layers(of: V41Model, g: Goldens, prompt: str) -> tuple[list[tuple[Tensor, Tensor]], Step]:
    """Every layer started from the stored trunk, in order: they share caches."""
    step = begin(of, g.ids(prompt))
    step.features = {}
    trunk, pre = g[f"{prompt}.trunk"], g[f"{prompt}.premix"]
    return [run_layer(step, n, p, trunk[n], pre[n]) for n, p in enumerate(of.params.layers)], step


def best_over_ties(share: Callable[[], float]) -> float:
    """``share()``, or the best of it with window values that lie on a rounding boundary moved to its other side.

    A value within a few float32 roundings of such a boundary is rounded one way or the other by the order of a sum, and
    one such step is seen by every later row. Nothing but these few values may explain a difference.
    """
    ties: list[Tie] = []
    with moved_ties([], ties):
        best = share()
    assert len(ties) <= MOST_TIES
    for count in range(1, len(ties) + 1):
        for some in itertools.combinations(ties, count):
            if best >= SHARE:
                return best
            with moved_ties(list(some), []):
                best = max(best, share())
    return best


@contextmanager
def moved_ties(moved: list[Tie], found: list[Tie]) -> Iterator[None]:
    """Window records are made with the ``moved`` values beyond their boundary; ``found`` gets those close to one."""
    calls = itertools.count()

    def pack(x: Tensor) -> Tensor:
        call = next(calls)
        unmoved, up, down = (decode_e4m3(pack_mxfp8(x * (1 + by))[:, : x.shape[1]]) for by in (0, TIE, -TIE))
        found.extend(Tie(call, row, column) for row, column in (up != down).nonzero().tolist())
        x = x.clone()
        for tie in moved:
            if tie.call == call:
                at = tie.row, tie.column
                x[at] *= 1 - TIE if up[at] == unmoved[at] else 1 + TIE
        return pack_mxfp8(x)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.models.deepseek_v41.attention.pack_mxfp8", pack)
        yield


def close_share(ours: Tensor, theirs: Tensor) -> float:
    return float(((ours - theirs).abs() <= ONE_LAYER).double().mean())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("prompt", SHORT)
def test_each_layer_from_the_stored_trunk(variant: str, prompt: str, backend: str) -> None:
    g, of = goldens(variant), model(variant, backend=backend)
    trunks, premixes, step = g[f"{prompt}.trunk"], g[f"{prompt}.premix"], begin(of, g.ids(prompt))
    for layer, params in enumerate(of.params.layers):
        start, end = (trunks[layer], premixes[layer]), (trunks[layer + 1], premixes[layer + 1])

        def share(layer: int = layer, params: LayerParams = params, start: Pair = start, end: Pair = end) -> float:
            return min(map(close_share, run_layer(step, layer, params, *start), end))

        assert best_over_ties(share) >= SHARE, layer


@pytest.mark.parametrize("prompt", SHORT)
def test_the_end_of_the_model_from_the_stored_trunk(variant: str, prompt: str) -> None:
    g, of = goldens(variant), model(variant)
    hidden = of.collapse(g[f"{prompt}.trunk"][-1], g[f"{prompt}.premix"][-1])
    normed = of.arithmetic.norm(hidden, of.params.norm, of.config.norm_eps)
    assert torch.allclose(normed, g[f"{prompt}.final_hidden"], atol=1e-5, rtol=1e-5)
    assert torch.allclose(of.logits(hidden), g[f"{prompt}.logits"], atol=1e-4)


def test_caches_after_layers_from_the_stored_trunk(variant: str) -> None:
    """What p1 leaves in the blocks: compressed KV and index keys, read back from their bytes."""
    g, of = goldens(variant), model(variant)
    _, step = run_layers(of, g, "p1")
    for layer in sorted(set(of.config.topology.kv_sources[of.config.topology.kv_sources.index(1) :])):
        rows = torch.arange(step.slices[0].last // of.config.topology.ratios[layer])
        kv = unpack_kv4(step.pages.read(step.records.kv[layer], torch.zeros_like(rows), rows))
        want = g[f"p1.compressed_kv.{layer}"].float()
        assert (kv != want).double().mean() <= 0.002, layer  # implementations differ in 0.0011 of layer 4's
        keys = index_keys(step, layer, step.slices[0])
        assert (keys != g[f"p1.index_keys.{layer}"].float()).double().mean() <= 0.002, layer


# -- the whole model --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", PROMPTS)
def test_logits_of_the_whole_model(variant: str, prompt: str) -> None:
    g = goldens(variant)
    want = g[f"{prompt}.logits"]
    ours = logits(model(variant), g.ids(prompt))[-len(want) :]
    assert median_row(ours - want) <= g.median_limit(f"{prompt}.logits")


@pytest.mark.parametrize("prompt", SHORT)
def test_logits_with_rounded_inputs_of_linears(variant: str, prompt: str) -> None:
    g, name = goldens(variant), f"{prompt}.logits_actq"
    if name not in g:
        pytest.skip("the oracles disagree on this one, so none is stored")
    ours = logits(model(variant, "float32+actq"), g.ids(prompt))
    assert median_row(ours - g[name]) <= 1e-4
    assert median_row(ours - g[f"{prompt}.logits"]) > 0.1  # the switch does something


@pytest.mark.parametrize("prompt", SHORT)
def test_bfloat16_stays_near_our_own_float32(variant: str, prompt: str) -> None:
    """Rounded activations, inputs and scores: no golden can hold them. Most rows keep their best token."""
    ids = goldens(variant).ids(prompt)
    exact, rounded = logits(model(variant), ids), logits(model(variant, "bfloat16"), ids)
    assert 0 < median_row(rounded - exact) < 1.0
    assert (rounded.argmax(1) == exact.argmax(1)).double().mean() >= 0.7


@pytest.mark.parametrize("prompt", ["p0", "p1", "p2"])
def test_greedy_continuation(variant: str, prompt: str) -> None:
    g, of = goldens(variant), model(variant)
    about = g.stated["tensors"][f"{prompt}.greedy_ids"]
    safe = about["leading_tokens_with_margin_over_twice_the_disagreement"]
    runner = PagedRunner(of, of.arithmetic.ops, 1, len(g.ids(prompt)) + 16, block_size=32)
    assert greedy(runner, g.ids(prompt), safe) == g[f"{prompt}.greedy_ids"][:safe].tolist() or safe == 0


# -- pictures ----------------------------------------------------------------------------------------------------------


def test_features_of_a_picture(variant: str) -> None:
    g, of = goldens(variant), model(variant)
    features = picture_features(of.arithmetic.ops, of.config, of.params.vision, g["image.pixels"], (6, 9))
    assert (features - g["image.features"]).abs().max() <= 1e-4


def test_logits_of_a_prompt_with_a_picture(variant: str) -> None:
    """Its rows come from the tower, choose experts by their own bias, and are a wall to Engram."""
    g, of = goldens(variant), model(variant)
    features = picture_features(of.arithmetic.ops, of.config, of.params.vision, g["image.pixels"], (6, 9))
    rows = of.embed(torch.tensor(g.ids("image"), dtype=torch.int32))
    merged = place_picture(rows, g["image.types"], features, of.params.vision)
    ours = of.logits(of.run(begin(of, g.ids("image")), merged))
    limit = max(1e-3, 3 * g.stated["tensors"]["image.logits"]["disagreement"]["median_row_max"])
    assert median_row(ours - g["image.logits"]) <= limit
    assert median_row(of.logits(of.run(begin(of, g.ids("image")), rows)) - g["image.logits"]) > 0.1


# -- drafting ---------------------------------------------------------------------------------------------------------


def draft(of: V41Model, g: Goldens, prompt: str, features: Tensor) -> DraftBlock:
    n, window = len(g.ids(prompt)), of.config.window
    records = context_records(of, of.params.draft, features[-window:], torch.arange(n)[-window:])
    first = int(g[f"{prompt}.greedy_ids"][0])
    return draft_block(of, records, first, n, lambda row: int(row.argmax()))


@pytest.mark.parametrize("prompt", SHORT)
def test_drafts_from_the_stored_features(variant: str, prompt: str) -> None:
    g = goldens(variant)

    def share() -> float:
        block = draft(model(variant), g, prompt, g[f"{prompt}.dspark_features"])
        assert block.ids.tolist() == g[f"{prompt}.draft_ids"].tolist()
        trust = close_share(block.confidence, g[f"{prompt}.draft_confidence"])
        return min(trust, close_share(block.logits, g[f"{prompt}.draft_logits"]))

    assert best_over_ties(share) >= SHARE


@pytest.mark.parametrize("prompt", PROMPTS)
def test_drafts_after_a_prompt(variant: str, prompt: str) -> None:
    """Features of our own run carry the noise of *every* row of the prompt, so the logits' bound is for smoke only."""
    g, of = goldens(variant), model(variant)
    step = begin(of, g.ids(prompt))
    step.features = {}
    of.run(step, of.embed(torch.tensor(g.ids(prompt), dtype=torch.int32)))
    block = draft(of, g, prompt, torch.cat([step.features[n] for n in of.config.draft.taps], dim=1))
    assert block.ids.tolist() == g[f"{prompt}.draft_ids"].tolist()
    assert median_row(block.logits - g[f"{prompt}.draft_logits"]) <= 0.1
