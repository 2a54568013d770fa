"""Dispatch and combine: rows go to the ranks that hold their experts, and what these make of them comes back.

A row goes once per expert it chose. Nothing is added up on the way: the sender gets every expert's answer by itself and
adds them in an order of its own, so a sum does not depend on who holds what. Knows neither experts nor weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.contract.errors import GroupBroken

from .exchange import Exchange


@dataclass(slots=True)
class Dispatched:
    """What came here, and how answers find their way back: pairs one ``dispatch`` with one ``combine``.

    rows (n, width), weights (n,), slots (n,) int64 counted from this rank's first. The rest is for ``combine``.
    """

    rows: Tensor
    weights: Tensor
    slots: Tensor
    sent: list[int]  # copies to each rank
    received: list[int]  # from each rank
    order: Tensor  # (copies,) place of each sent copy among (token, choice) pairs
    shape: tuple[int, int]  # tokens, choices of each
    open: bool = True


def dispatch(exchange: Exchange, rows: Tensor, slots: Tensor, weights: Tensor, slots_per_rank: int) -> Dispatched:
    """rows (T, width) float32; slots (T, k) int64 of the whole group, and weights (T, k). Raises GroupBroken."""
    tokens, choices = slots.shape
    flat = slots.flatten()
    order = (flat // slots_per_rank).argsort(stable=True)  # by rank, then by token and choice
    ranks, own = flat[order] // slots_per_rank, flat[order] % slots_per_rank
    sent = torch.bincount(ranks, minlength=exchange.size).tolist()
    beside = torch.stack((weights.flatten()[order], own.to(rows.dtype)), dim=1)  # slot numbers are exact in float32
    message = torch.cat((rows[order // max(choices, 1)], beside), dim=1)
    parts = exchange.rows(message.split(sent))
    got, width = torch.cat(parts), rows.shape[1]
    return Dispatched(
        rows=got[:, :width].contiguous(),
        weights=got[:, width].contiguous(),
        slots=got[:, width + 1].long(),
        sent=sent,
        received=[len(part) for part in parts],
        order=order,
        shape=(tokens, choices),
    )


def combine(exchange: Exchange, handle: Dispatched, answers: Tensor) -> Tensor:
    """answers (n, width) to the handle's rows -> (T, k, width) to those that were sent. Once per handle.

    Raises GroupBroken; AssertionError for a handle that was used, or answers that are not its own.
    """
    assert handle.open, "this dispatch was combined already"
    assert len(answers) == len(handle.rows), f"{len(answers)} answers to {len(handle.rows)} rows"
    handle.open = False
    parts = exchange.rows(answers.split(handle.received), expected=handle.sent)
    came = torch.cat(parts)
    if len(came) != len(handle.order):
        raise GroupBroken(f"rank {exchange.rank}: {len(came)} answers to {len(handle.order)} rows sent")
    out = torch.empty_like(came)
    out[handle.order] = came
    return out.view(*handle.shape, answers.shape[1])
