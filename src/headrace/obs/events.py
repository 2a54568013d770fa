"""The lines of a flight recording: one JSON object each, ``event`` says which. Format 1.

Every call that changes the scheduler is one event, in the order of the calls; nothing else is needed to
repeat a run. ``t`` is seconds since the recording began, on a monotonic clock. Fields that hold their
default are left out of the file. A change of meaning, or a new field that replay depends on, is a new
``FORMAT``.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

FORMAT = 1


class Event(msgspec.Struct, tag_field="event", omit_defaults=True, forbid_unknown_fields=True):
    """What all lines share; the tag is the event's name."""


class Config(Event, tag="config", kw_only=True):
    """The first line. ``core``: the scheduler's constructor arguments; ``time``: seconds since 1970;
    ``names``: what to call sequences instead of their numbers."""

    format: int
    headrace: str
    time: float
    core: dict[str, Any]
    title: str = ""
    names: dict[int, str] = {}


class Added(Event, tag="add", kw_only=True):
    """A sequence came in. Fields are those of the engine's ``add_sequence``."""

    t: float
    seq_id: int
    prompt: list[int]
    max_tokens: int
    min_tokens: int
    eos_ids: list[int]
    stop_ids: list[int]
    ignore_eos: bool
    reads_cache: bool
    priority: int
    arrival: float
    salt: str = ""
    adapter: str = ""
    outputs: list[int] = []
    checkpoints: list[int] = []
    media: list[tuple[str, int, int]] = []  # pictures: id, first row, rows


class Finished(Event, tag="finish", kw_only=True):
    """A sequence was ended from outside: ``abort``, ``stop`` (a stop string) or ``error``.

    Ends that the scheduler finds itself (end-of-sequence ids, lengths) follow from the commits: no line.
    """

    t: float
    seq_id: int
    reason: str


class Planned(Event, tag="plan", kw_only=True):
    """A plan, array for array as in ``contract/plan.py``. ``step`` -1: nothing could run, see the notes.

    A step without slices keeps other ranks company.
    """

    t: float
    step: int
    kind: int = 0
    seq_ids: list[int] = []
    num_scheduled: list[int] = []
    num_computed: list[int] = []
    num_tokens: list[int] = []
    num_drafts: list[int] = []
    samples: list[int] = []
    clips: list[int] = []
    draft_tokens: list[int] = []
    fresh_slices: list[int] = []
    fresh_cached: list[int] = []
    fresh_offsets: list[int] = []
    fresh_tokens: list[int] = []
    block_starts: list[int] = []
    block_offsets: list[int] = []
    block_ids: list[int] = []
    dropped: list[int] = []
    clone_states: list[int] = []
    clone_blocks: list[int] = []
    zero_states: list[int] = []
    note_seqs: list[int] = []
    note_codes: list[int] = []
    note_values: list[int] = []
    token_budget_left: int
    input_budget_left: int
    num_free_blocks: int
    num_running: int
    num_waiting: int
    time_budget_ns: int = 0


class Committed(Event, tag="commit", kw_only=True):
    """A step's result as the worker gave it: ``num_valid`` per slice; ``offsets`` cut ``tokens``."""

    t: float
    step: int
    num_valid: list[int]
    offsets: list[int]
    tokens: list[int] = []


class Failed(Event, tag="fail", kw_only=True):
    """A step did not run, or not wholly."""

    t: float
    step: int
    message: str


class Drafted(Event, tag="drafts", kw_only=True):
    """A speculated continuation was handed to the scheduler, to be verified in the sequence's next slice."""

    t: float
    seq_id: int
    tokens: list[int] = []


class Readied(Event, tag="ready", kw_only=True):
    """A sequence became able to run, or unable (a grammar compiles, KV loads)."""

    t: float
    seq_id: int
    ready: bool


class Forked(Event, tag="fork", kw_only=True):
    """A sequence began that shares what ``parent`` had computed."""

    t: float
    parent: int
    seq_id: int
    prompt: list[int]
    outputs: list[int]


class Placed(Event, tag="place", kw_only=True):
    """A sequence that was prefilled elsewhere got its blocks. ``from_cache``: it computes what the pool lacked."""

    t: float
    seq_id: int
    from_cache: bool = False


class Judged(Event, tag="confidences", kw_only=True):
    """How likely each draft of a sequence is accepted, given that all before it were."""

    t: float
    seq_id: int
    confidences: list[float]


class Imported(Event, tag="import", kw_only=True):
    """Stored KV of positions [``first``, ``num_tokens``) was taken into the pool for a waiting sequence."""

    t: float
    seq_id: int
    num_tokens: int
    first: int = 0


class Priced(Event, tag="cost", kw_only=True):
    """What verifying more drafts costs from here on; fields are those of the core's ``StepCost``."""

    t: float
    sizes: list[int]
    times_ms: list[float]
    slope_ms: float = 0.0
    sampler_ms: float = 0.0
    sampler_by_seqs: list[tuple[int, float]] = []


class CacheReset(Event, tag="reset", kw_only=True):
    """The prefix cache was forgotten; ``running``: even at running sequences' expense."""

    t: float
    running: bool = False


Body: TypeAlias = (
    Added
    | Finished
    | Planned
    | Committed
    | Failed
    | Drafted
    | Readied
    | CacheReset
    | Forked
    | Placed
    | Imported
    | Judged
    | Priced
)

PLAN_NUMBERS = (
    "step",
    "kind",
    "token_budget_left",
    "input_budget_left",
    "num_free_blocks",
    "num_running",
    "num_waiting",
)
PLAN_INPUTS = ("time_budget_ns",)  # what the caller asked for: replay passes it on
PLAN_ARRAYS = tuple(name for name in Planned.__struct_fields__ if name not in (*PLAN_NUMBERS, *PLAN_INPUTS, "t"))
