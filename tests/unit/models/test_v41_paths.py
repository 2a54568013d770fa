"""The fast path beside the readable one: the same layers from the same trunk, by native ops and in torch."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import pytest
import torch
from paged_runner import PagedRunner
from torch import Tensor
from v41_config import dummy_model

from headrace.kernels.ops import Ops
from headrace.kernels.resolve import resolve_ops
from headrace.models.deepseek_v41.forward import V41Model
from headrace.models.deepseek_v41.layer import run_layer
from headrace.models.deepseek_v41.records import kv_layout
from headrace.models.deepseek_v41.step import Step

TOKENS = 150  # more blocks than later index layers may choose among
NEAR, SHARE = 1e-4, 0.999


def readable(ops: Ops) -> Ops:
    """The same products, with attention over records and the choice of entries in torch."""
    plain = resolve_ops("reference")
    return replace(ops, latent_attention=plain.latent_attention, choose_entries=plain.choose_entries)


def begin(of: V41Model, ops: Ops) -> Step:
    ids = torch.randint(of.vocab_size, (TOKENS,), generator=torch.Generator().manual_seed(2)).tolist()
    return of.begin(PagedRunner(of, ops, 1, TOKENS).context({0: ids}))


def share_near(a: Tensor, b: Tensor) -> float:
    return float(((a - b).abs() <= NEAR).double().mean())


@torch.inference_mode()
@pytest.mark.parametrize("narrow", [True, False])
def test_layers_agree(narrow: bool) -> None:
    of = copy(dummy_model())
    of.config = replace(of.config, narrow_kv=narrow)
    of.kv_layout = kv_layout(of.config)
    fast, plain = begin(of, of.arithmetic.ops), begin(of, readable(of.arithmetic.ops))
    trunk, pre = of.spread(of.embed(torch.arange(TOKENS, dtype=torch.int32)))
    for layer, params in enumerate(of.params.layers):
        ours, theirs = (run_layer(step, layer, params, trunk, pre) for step in (fast, plain))
        assert min(map(share_near, ours, theirs)) >= SHARE, layer
        for mine, other in ((fast.selected, plain.selected), (fast.candidates, plain.candidates)):
            assert (mine is None) == (other is None), layer
            assert mine is None or other is None or torch.equal(mine, other), layer
        trunk, pre = ours
    assert fast.selected is not None
    assert fast.candidates is not None
