"""What the overlapped loop takes for granted while a step is in flight, entry by entry. docs/overlap.md tells the same.

Plain data. Every entry has a test of its name (``tests/sim/test_optimism.py``); who makes the loop more optimistic adds
an entry and its test first.
"""

from __future__ import annotations

from typing import NamedTuple


class Assumption(NamedTuple):
    """``holds_if``: when it is true. ``otherwise``: what happens when it was not, and where."""

    name: str
    taken_for_granted: str
    holds_if: str
    otherwise: str


ASSUMPTIONS: tuple[Assumption, ...] = (
    Assumption(
        "progress",
        "the tokens of the step in flight count as computed",
        "the step succeeds",
        "core fail(): the count goes back, the sequence is recomputed",
    ),
    Assumption(
        "promised_token",
        "a sequence whose step will sample is planned one token further, without knowing the token",
        "the step samples one",
        "fill_unknown (core/pack.h) puts the id in; where none could be drawn, any: the sequence ends, its row is GONE",
    ),
    Assumption(
        "goes_on",
        "the sequence will not end with the token in flight (end-of-text, stop id, stop string, error)",
        "it does not",
        "the row is computed in vain: GONE at commit, nothing is emitted, its blocks are free again",
    ),
    Assumption(
        "not_aborted",
        "nobody aborts between plan and result",
        "nobody does",
        "intake is drained before every commit: the end is an abort, never a normal one",
    ),
    Assumption(
        "keeps_its_blocks",
        "a sequence in flight keeps its blocks until its result",
        "it is not preempted meanwhile",
        "num_stale: the token is delivered when it comes; the sequence does not resume before",
    ),
    Assumption(
        "blocks_for_promised",
        "the block of the promised token is taken before the token is known",
        "the sequence goes on",
        "freed at its end; an idle pool holds nothing",
    ),
    Assumption(
        "registered_prefix",
        "blocks the step in flight fills count as prefix hits at once",
        "the step succeeds",
        "registrations are fenced: rolled back with every sequence that touched one, all recomputed",
    ),
    Assumption(
        "step_order",
        "the device runs launches in the order they were queued, so a step may read what the one before writes",
        "always: one queue, one thread",
        "no correction exists: a device without this order must not overlap",
    ),
    Assumption(
        "reserved_drafts",
        "with speculation, a sequence gets rows for drafts and stands past them before it is known how many stand",
        "every draft is accepted",
        "worker/revise.py moves positions, slots and lengths on the device; at commit the ledger takes back the rest",
    ),
)

NOT_OPTIMISTIC: tuple[tuple[str, str], ...] = (
    ("max_tokens", "the promised tokens are counted, so no step is planned past the last one"),
    ("sampling", "a step samples after the one before was committed: penalties, bans and grammars see every token"),
)
