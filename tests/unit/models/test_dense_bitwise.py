"""On the ``cpu`` backend a row's bits do not depend on chunking, company or block size. Every dense family."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from dense_oracle import oracle_logits
from paged_runner import PagedRunner
from tiny_models import CONFIGS, random_tensors, write_directory

from headrace.kernels.resolve import resolve_ops
from headrace.models.registry import load_model
from headrace.models.weights import open_checkpoint

PROMPT = torch.randint(0, 61, (40,), generator=torch.Generator().manual_seed(7)).tolist()


@pytest.mark.parametrize("name", CONFIGS)
def test_bits_do_not_depend_on_the_step(name: str, tmp_path: Path) -> None:
    ops, config, tensors = resolve_ops("cpu", strict=True), CONFIGS[name], random_tensors(CONFIGS[name])
    model = load_model(open_checkpoint(write_directory(tmp_path, config, tensors)), ops)
    whole = PagedRunner(model, ops, 1, 40, block_size=16).logits({0: PROMPT})[0]
    torch.testing.assert_close(whole.double(), oracle_logits(config, tensors, PROMPT), atol=2e-4, rtol=2e-4)

    chunked = PagedRunner(model, ops, 1, 40, block_size=16)
    pieces = [chunked.logits({0: PROMPT[a:b]})[0] for a, b in pairwise([0, 3, 4, 20, 40])]
    assert torch.equal(torch.cat(pieces), whole)

    batch = PagedRunner(model, ops, 3, 40, block_size=3)
    first = batch.logits({1: PROMPT[::-1], 0: PROMPT[:17]})[1]
    second = batch.logits({2: PROMPT[5:], 0: PROMPT[17:]})[1]
    assert torch.equal(torch.cat((first, second)), whole)
