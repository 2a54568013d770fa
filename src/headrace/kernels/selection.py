"""Which entries a row chooses by its scores: the best ones, the best blocks of them. Pure functions in torch.

The tie rule is part of the definition: the higher score wins, then the lower index. With few index heads
many scores are exactly zero, so without the rule the choice would depend on how a prompt was cut.
"""

from __future__ import annotations

import torch
from torch import Tensor

NOTHING = -1


def best_entries(scores: Tensor, visible: Tensor, count: int, allowed: Tensor | None = None) -> Tensor:
    """The ``count`` best of each row's first ``visible`` (T,) entries, ascending, ``NOTHING`` behind them: (T, count).

    ``allowed`` (T, n) bool narrows the choice.
    """
    num_rows, n = scores.shape
    usable = torch.arange(n) < visible.unsqueeze(1)
    if allowed is not None:
        usable = usable & allowed
    masked = scores.masked_fill(~usable, -torch.inf)
    order = masked.sort(dim=1, descending=True, stable=True).indices[:, :count]
    chosen = torch.where(usable.gather(1, order), order, n).sort(dim=1).values
    result = torch.full((num_rows, count), NOTHING)
    result[:, : chosen.shape[1]] = torch.where(chosen < n, chosen, NOTHING)
    return result


def best_blocks(scores: Tensor, visible: Tensor, count: int, size: int) -> Tensor:
    """Blocks of ``size`` entries by their best entry, as ``best_entries``; the last visible block is always in."""
    num_rows, n = scores.shape
    num_blocks = -(-n // size)
    usable = torch.arange(n) < visible.unsqueeze(1)
    padded = torch.full((num_rows, num_blocks * size), -torch.inf)
    padded[:, :n] = scores.masked_fill(~usable, -torch.inf)
    best = padded.unflatten(1, (num_blocks, size)).amax(2)
    seen_blocks = (visible + size - 1) // size
    is_last = torch.arange(num_blocks) == (seen_blocks - 1).unsqueeze(1)
    return best_entries(best.masked_fill(is_last, torch.inf), seen_blocks, count)


def entries_of(blocks: Tensor, size: int, num_entries: int) -> Tensor:
    """(T, C) block numbers -> (T, num_entries) bool: the entries of these blocks."""
    num_blocks = -(-num_entries // size)
    return members(blocks, num_blocks).repeat_interleave(size, 1)[:, :num_entries]


def members(lists: Tensor, n: int) -> Tensor:
    """(T, K) numbers below n, or ``NOTHING`` -> (T, n) bool."""
    held = torch.zeros(len(lists), n + 1, dtype=torch.bool)
    held.scatter_(1, torch.where(lists == NOTHING, n, lists).long(), True)
    return held[:, :n]
