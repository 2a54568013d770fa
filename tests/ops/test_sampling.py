"""What sampling promises beyond agreement with the reference: hash, distribution, edges of the filters."""

from __future__ import annotations

import threading

import torch

from headrace.kernels import case_inputs as inputs
from headrace.kernels.ops import Ops, SampleParams
from headrace.kernels.reference.noise import philox, uniform


def params(rows: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> SampleParams:
    return inputs.sample(0, torch.zeros(rows, 1), temperature, top_k, top_p, min_p)[1]


def test_philox_known_answer() -> None:
    zero = torch.tensor([0])
    assert philox(zero, zero, zero).item() == 0x6627E8D5  # published for counter 0, key 0


def test_uniform_stays_inside_the_open_interval() -> None:
    u = uniform(torch.tensor([0, 1, 2**31, 2**32 - 1]))
    assert bool(((u > 0) & (u < 1)).all())


def test_draws_follow_the_distribution(cpu: Ops) -> None:
    rows, row = 20000, torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5])
    ids = cpu.sample(row.repeat(rows, 1), params(rows, temperature=0.7))
    share = torch.bincount(ids.long(), minlength=5) / rows
    torch.testing.assert_close(share, (row / 0.7).softmax(0), atol=0.015, rtol=0)  # four standard deviations


def test_top_p_keeps_the_id_that_crosses(cpu: Ops) -> None:
    row = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    for top_p, kept in ((0.49, {0}), (0.51, {0, 1}), (0.79, {0, 1}), (0.81, {0, 1, 2}), (0.97, {0, 1, 2, 3})):
        assert set(cpu.sample(row.repeat(2000, 1), params(2000, top_p=top_p)).tolist()) == kept


def test_top_p_works_on_what_top_k_left(cpu: Ops) -> None:
    row = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    # Of the first two alone, the first holds 0.57: with top_p 0.5 nothing else is needed.
    assert set(cpu.sample(row.repeat(500, 1), params(500, top_k=2, top_p=0.5)).tolist()) == {0}
    assert set(cpu.sample(row.repeat(500, 1), params(500, top_p=0.5)).tolist()) == {0, 1}


def test_ties_at_the_edge_go_to_lower_ids(cpu: Ops) -> None:
    flat = torch.zeros(500, 8)
    assert set(cpu.sample(flat, params(500, top_k=3)).tolist()) == {0, 1, 2}
    assert set(cpu.sample(flat, params(500, top_p=0.3)).tolist()) == {0, 1, 2}


def test_min_p_is_relative_to_the_best(cpu: Ops) -> None:
    row = torch.tensor([0.5, 0.26, 0.24]).log()
    assert set(cpu.sample(row.repeat(500, 1), params(500, min_p=0.5)).tolist()) == {0, 1}


def test_filters_do_not_change_the_noise(cpu: Ops) -> None:
    x = inputs.logits(1, 200, 64, spread=1.0)
    free, filtered = cpu.sample(x, params(200)), cpu.sample(x, params(200, top_k=8))
    best = x.topk(8).indices
    inside = (best == free[:, None]).any(-1)
    assert torch.equal(free[inside], filtered[inside])
    assert 0 < int(inside.sum()) < 200


def test_concurrent_callers_get_their_own_results(cpu: Ops) -> None:
    x, w, _ = inputs.linear(0, 40, 64, 256)
    packed, wrong = cpu.pack_weight(w), []
    want = cpu.linear(x, packed, None)

    def repeat() -> None:
        for _ in range(50):
            if not torch.equal(cpu.linear(x, packed, None), want):
                wrong.append(True)

    threads = [threading.Thread(target=repeat) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
