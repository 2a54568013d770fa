"""What is told of a recording, as plain data: the same for text, JSON and HTML. Nothing here computes.

Counts are taken at three moments: before the plan, after it, and after the step's result. With overlap
another plan lies between the second and the third.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Counts(msgspec.Struct, frozen=True):
    """A sequence's ledger: known tokens, planned progress, tokens out at the worker, outputs those may bring,
    and the part of what is out that has become void."""

    num_tokens: int
    num_computed: int
    num_in_flight: int
    num_promised: int
    num_stale: int


class SliceStory(msgspec.Struct, kw_only=True):
    """One sequence's share of a step: of ``need`` tokens from ``first_position`` on, ``num_scheduled`` given.

    ``tables``: the block table per KV group after the plan, 0 where no block is held; of it, the blocks from
    ``block_starts`` on are news of this plan. ``*_left``: budgets after this slice. ``returned``,
    ``outcome``, ``result`` (in words), ``num_valid``, ``emitted`` and ``finish`` are None while the result
    is not in.
    """

    seq_id: int
    kind: str
    first_position: int
    need: int
    num_scheduled: int
    num_drafts: int
    samples: bool
    clip: str
    why: str
    num_cached: int
    fresh: bool
    token_budget_left: int
    input_budget_left: int
    block_starts: list[int]
    tables: list[list[int]]
    before: Counts
    planned: Counts
    returned: Counts | None = None
    outcome: str | None = None
    result: str | None = None
    num_valid: int | None = None
    emitted: list[int] | None = None
    finish: str | None = None


class NoteStory(msgspec.Struct, frozen=True):
    """A planner's remark; ``seq_id`` -1: on the queue as a whole."""

    seq_id: int
    note: str
    value: int
    why: str


class Happening(msgspec.Struct, frozen=True):
    """Something other than a plan: add, finish, commit, fail, drafts, ready, reset; ``line`` of the file."""

    line: int
    t: float
    kind: str
    seq_id: int
    text: str


class StepStory(msgspec.Struct, kw_only=True):
    """One plan and its result. ``step`` -1: an empty plan. ``happenings``: since the plan before.

    ``outcome``: commit, fail, or None while in flight. ``running``/``waiting``: sequences after the plan, in
    order. ``free_queue``: the next free blocks to be handed out, at most ``FREE_QUEUE_SHOWN``.
    """

    step: int
    line: int
    t: float
    token_budget: int
    input_budget: int
    token_budget_left: int
    input_budget_left: int
    num_free_blocks: int
    running: list[int]
    waiting: list[int]
    free_queue: list[int]
    slices: list[SliceStory]
    notes: list[NoteStory]
    happenings: list[Happening]
    outcome: str | None = None
    t_returned: float | None = None
    message: str | None = None

    @property
    def num_scheduled(self) -> int:
        return sum(piece.num_scheduled for piece in self.slices)


class Story(msgspec.Struct, kw_only=True):
    """A recording, or steps ``first`` to ``last`` of it.

    ``held``: block tables of running sequences before the first step told, per sequence and KV group.
    ``difference``: where replay parted from the recording, if it did.
    """

    path: str
    title: str
    headrace: str
    time: float
    core: dict[str, Any]
    num_blocks: int
    names: dict[int, str]
    num_steps: int
    first: int
    last: int
    truncated: bool
    steps: list[StepStory]
    happenings_after: list[Happening]
    held: dict[int, list[list[int]]]
    difference: str | None

    def name(self, seq_id: int) -> str:
        return self.names.get(seq_id, f"#{seq_id}")


FREE_QUEUE_SHOWN = 16
