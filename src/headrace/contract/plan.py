"""StepPlan: what one step is to do. The contract between scheduler and worker, as flat arrays.

The C++ core makes it; this Protocol documents it and anything with these attributes can stand in for it. ``S`` is
the number of slices, ``G`` of KV groups. ``*_offsets`` cut a flat array into rows. Enumerations mirror the core's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .picture import Picture
from .request import SamplingParams

IntArray = NDArray[np.int32]
LongArray = NDArray[np.int64]
ByteArray = NDArray[np.uint8]


class StepKind(IntEnum):
    MIXED = 0
    PREFILL = 1
    DECODE = 2


class Role(IntEnum):
    """What an engine does: MIXED steps, or prompts and decoding planned apart (both, or one of them)."""

    UNIFIED = 0
    NORMAL = 1
    PROMPT = 2
    COMPLETION = 3


class Ignored(IntEnum):
    """Why the scheduler ended a sequence by itself."""

    TOO_LONG = 0
    NEVER_FITS = 1
    PREEMPTED = 2


class GraphMode(IntEnum):
    """How a step's forward ran: op by op, captured between attentions, or captured whole. Ordered."""

    NONE = 0
    PIECEWISE = 1
    FULL = 2


class Clip(IntEnum):
    """Why a slice is as long as it is."""

    WHOLE = 0
    TOKEN_BUDGET = 1
    INPUT_BUDGET = 2
    LONG_PREFILL = 3
    MODEL_LENGTH = 4
    BLOCKS = 5
    CHECKPOINT = 6
    MEDIA = 7
    KEYS = 8
    TIME = 9
    VERIFICATION = 10


class Note(IntEnum):
    """A planner's remark on a sequence (or on the queue, sequence -1); the value's meaning is in brackets."""

    HIT = 0  # taken from the prefix cache [tokens]
    PREEMPTED = 1  # gave way [blocks given back]
    NO_BLOCKS = 2  # waits for blocks [how many are missing]
    NO_BUDGET = 3  # waits for budget [tokens needed, or sequences waiting]
    NO_SLOT = 4  # max_seqs reached [sequences waiting]
    NOT_READY = 5  # grammar compiling, KV loading
    NOT_DRAINED = 6  # results of a void step are still to come [stale tokens]
    TOO_LONG_FOR_STEP = 7  # chunked prefill is off and the prompt exceeds the budget [tokens]
    IGNORED = 8  # ended by the scheduler [Ignored]
    CLONED = 9  # forked, got blocks of its own [blocks]


class Outcome(IntEnum):
    """What became of a slice's result at commit."""

    COMMITTED = 0
    DELIVERED = 1
    DROPPED = 2
    GONE = 3


class Finish(IntEnum):
    """Why a sequence ended. ``STOP``: an end-of-sequence or stop id, or (api) a stop string."""

    NONE = 0
    STOP = 1
    LENGTH = 2
    ABORT = 3
    ERROR = 4
    IGNORED = 5


class StepPlan(Protocol):
    """One step. Slices are in execution order; ``num_scheduled`` is a slice's total, drafts included."""

    @property
    def step(self) -> int: ...
    @property
    def kind(self) -> int: ...
    @property
    def time_budget_ns(self) -> int: ...  # of a prompt step; 0 = none
    @property
    def total_tokens(self) -> int: ...
    @property
    def sums(self) -> tuple[int, int, int, int]: ...  # slices; drafts apart: tokens, slices of one, pairs attended
    @property
    def seq_ids(self) -> Any: ...  # (S,) int64
    @property
    def num_scheduled(self) -> Any: ...  # (S,) int32
    @property
    def num_computed(self) -> Any: ...  # (S,) int32, before the slice
    @property
    def num_tokens(self) -> Any: ...  # (S,) int32, known to the core
    @property
    def num_drafts(self) -> Any: ...  # (S,) int32
    @property
    def samples(self) -> Any: ...  # (S,) uint8: 1 when the slice reaches the sequence's end
    @property
    def clips(self) -> Any: ...  # (S,) uint8, Clip
    @property
    def draft_tokens(self) -> Any: ...  # flat int32
    @property
    def num_fresh(self) -> int: ...
    @property
    def fresh_slices(self) -> Any: ...  # (F,) int32: slices whose sequence the worker does not hold
    @property
    def fresh_cached(self) -> Any: ...  # (F,) int32: tokens taken from the prefix cache
    @property
    def fresh_offsets(self) -> Any: ...  # (F+1,) int32 into fresh_tokens
    @property
    def fresh_tokens(self) -> Any: ...  # flat int32: prompt and outputs so far
    @property
    def block_starts(self) -> Any: ...  # (S*G,) int32: where new blocks go in the table
    @property
    def block_offsets(self) -> Any: ...  # (S*G+1,) int32 into block_ids
    @property
    def block_ids(self) -> Any: ...  # flat int32
    @property
    def dropped(self) -> Any: ...  # int64: sequences whose rows can go before this step
    @property
    def clone_states(self) -> Any: ...  # pairs int32, applied before the forward, in this order
    @property
    def clone_blocks(self) -> Any: ...
    @property
    def zero_states(self) -> Any: ...
    @property
    def note_seqs(self) -> Any: ...  # int64
    @property
    def note_codes(self) -> Any: ...  # uint8, Note
    @property
    def note_values(self) -> Any: ...  # int32
    @property
    def token_budget_left(self) -> int: ...
    @property
    def input_budget_left(self) -> int: ...
    @property
    def num_free_blocks(self) -> int: ...
    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...


@dataclass(frozen=True, slots=True)
class SequenceStart:
    """What a worker must know of a sequence besides tokens; sent once, before its first slice."""

    seq_id: int
    prompt_len: int
    sampling: SamplingParams
    eos_ids: tuple[int, ...]
    grammar: Any = None  # compiled, where the sampling asks for structured outputs
    pictures: tuple[Picture, ...] = ()
