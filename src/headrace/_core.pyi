"""
Scheduling core: ledger, block pool, planners, packing. Pure functions of the calls made.
"""

from collections.abc import Callable, Sequence
import enum
from typing import Annotated

import numpy
from numpy.typing import NDArray


class StaleMode(enum.Enum):
    DELIVER = 0

    DROP = 1

class Ledger:
    """Five counts and four moves; see docs/ledger.md."""

    def __init__(self, num_tokens: int) -> None: ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def num_computed(self) -> int: ...

    @property
    def num_in_flight(self) -> int: ...

    @property
    def num_promised(self) -> int: ...

    @property
    def num_stale(self) -> int: ...

    @property
    def num_valid(self) -> int: ...

    def need(self, drafts: int) -> int: ...

    def start_at(self, num_cached: int) -> None: ...

    def advance(self, q: int, drafts: int) -> int: ...

    def commit(self, q: int, valid: int, promised: int, emitted: int) -> None: ...

    def reset(self) -> None: ...

    def drain(self, q: int, emitted: int, mode: StaleMode) -> None: ...

class ExtraKeys:
    """What besides tokens shapes a sequence's KV."""

    def __init__(self, adapter: str = '', media: Sequence[tuple[str, int, int]] = [], salt: str = '', embeds_digest: str = '') -> None: ...

class ChainNode:
    """The content of one full block and of everything before it."""

    @property
    def digest(self) -> bytes: ...

def empty_parent() -> bytes:
    """The parent digest of first blocks."""

def make_node(parent: ChainNode | None, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], keys: ExtraKeys = ..., start: int = 0, weak: bool = False) -> ChainNode:
    """A chain node; `start` is the block's first position."""

class BlockPool:
    """Reference counts, free queue and content names of KV blocks."""

    def __init__(self, num_blocks: int, caching: bool = True) -> None: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def num_free(self) -> int: ...

    @property
    def num_used(self) -> int: ...

    def ref_count(self, block: int) -> int: ...

    def free_queue(self) -> list[int]: ...

    def allocate(self, count: int) -> list[int]: ...

    def touch(self, blocks: Sequence[int]) -> None: ...

    def free(self, blocks: Sequence[int]) -> None: ...

    def name(self, block: int, node: ChainNode, group: int = 0) -> None: ...

    def forget(self, block: int) -> None: ...

    def evict_first(self, block: int) -> None: ...

    def find(self, node: ChainNode, group: int = 0) -> int: ...

class StepCost:
    """What a step costs, at one moment, in milliseconds."""

    def __init__(self, *, sizes: Sequence[int] = [], times_ms: Sequence[float] = [], slope_ms: float = 0.0, sampler_ms: float = 0.0, sampler_by_seqs: Sequence[tuple[int, float]] = []) -> None:
        """sizes: captured, rising; empty: not known. Raises InvalidField."""

    @property
    def sizes(self) -> list[int]: ...

    @property
    def times_ms(self) -> list[float]: ...

    @property
    def slope_ms(self) -> float: ...

    @property
    def sampler_ms(self) -> float: ...

    @property
    def sampler_by_seqs(self) -> list[tuple[int, float]]: ...

    def time_ms(self, total: int, num_seqs: int) -> float: ...

class VerifyChoice:
    """Rows of the step, what they should emit and cost, drafts per sequence."""

    @property
    def total(self) -> int: ...

    @property
    def expected(self) -> float: ...

    @property
    def time_ms(self) -> float: ...

    @property
    def drafts(self) -> list[int]: ...

def choose_drafts(num_drafts: Sequence[int], confidences: Sequence[Sequence[float]], cost: StepCost, max_total: int = 2147483647) -> VerifyChoice: ...

def drafts_for_total(num_drafts: Sequence[int], confidences: Sequence[Sequence[float]], total: int) -> list[int]: ...

class CostModel:
    """A profiled curve, corrected by what steps really took."""

    def __init__(self, sizes: Sequence[int], times_ms: Sequence[float]) -> None: ...

    def add_step(self, size: int, ms: float) -> None: ...

    def add_sampler(self, num_seqs: int, ms: float) -> None: ...

    @property
    def slope_ms(self) -> float: ...

    def sampler_ms(self, num_seqs: int) -> float: ...

    def snapshot(self) -> StepCost: ...

class InvalidField(ValueError):
    pass

class StepPlan:
    """One step's plan as flat arrays; see contract/plan.py for shapes."""

    @property
    def step(self) -> int: ...

    @property
    def kind(self) -> int: ...

    @property
    def time_budget_ns(self) -> int: ...

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

    @property
    def total_tokens(self) -> int: ...

    @property
    def num_fresh(self) -> int: ...

    @property
    def sums(self) -> tuple[int, int, int, int]: ...

    @property
    def seq_ids(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def num_scheduled(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]: ...

    @property
    def num_computed(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]: ...

    @property
    def num_tokens(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]: ...

    @property
    def num_drafts(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]: ...

    @property
    def samples(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]: ...

    @property
    def clips(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]: ...

    @property
    def draft_tokens(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]: ...

    @property
    def fresh_slices(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]: ...

    @property
    def fresh_cached(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]: ...

    @property
    def fresh_offsets(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]: ...

    @property
    def fresh_tokens(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]: ...

    @property
    def block_starts(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]: ...

    @property
    def block_offsets(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]: ...

    @property
    def block_ids(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]: ...

    @property
    def dropped(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def clone_states(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]: ...

    @property
    def clone_blocks(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]: ...

    @property
    def zero_states(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]: ...

    @property
    def note_seqs(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def note_codes(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]: ...

    @property
    def note_values(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]: ...

class CommitResult:
    """What became of each slice; offsets cut tokens into rows."""

    @property
    def seq_ids(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def outcomes(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]: ...

    @property
    def finishes(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]: ...

    @property
    def offsets(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]: ...

    @property
    def tokens(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]: ...

    @property
    def gone_tokens(self) -> int: ...

    @property
    def dropped_tokens(self) -> int: ...

    def news(self) -> list:
        """
        (slice, sequence, Finish, tokens) of each slice with tokens or an end, in plan order.
        """

class Scheduler:
    """Sequences, queues and blocks; plans steps and takes their results."""

    def __init__(self, *, num_blocks: int, block_size: int = 32, groups: Sequence[tuple[int, int]] = [(0, 0)], prefix_caching: bool = True, weak_hash: bool = False, token_budget: int = 512, input_budget: int = 0, draft_slots: int = 0, lookahead: int = 0, max_seqs: int = 64, max_model_len: int = 2048, long_prefill_threshold: int = 0, watermark_blocks: int = 0, chunked_prefill: bool = True, full_sequence_must_fit: bool = True, priority: bool = False, role: int = 0, cp_size: int = 1, min_slice: int = 1, max_sum_keys: int = 0, stop_preempted: bool = False, prefill_cost: tuple[float, float, float] = (0.0, 0.0, 0.0), seal_tokens: int = 0) -> None:
        """
        groups: (kind, window) pairs. input_budget 0: no limit of its own. Raises InvalidField.
        """

    def add(self, id: int, prompt: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], *, max_tokens: int = 16, min_tokens: int = 0, eos_ids: Sequence[int] = [], stop_ids: Sequence[int] = [], ignore_eos: bool = False, reads_cache: bool = True, ready: bool = True, priority: int = 0, arrival: float = 0.0, keys: ExtraKeys = ..., outputs: Sequence[int] = [], checkpoints: Sequence[int] = []) -> None:
        """Raises InvalidField naming the field; nothing is changed then."""

    def fork(self, parent: int, id: int, prompt: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], outputs: Sequence[int]) -> None:
        """
        A sequence that goes on from what `parent` has computed. Raises InvalidField.
        """

    def place(self, id: int, from_cache: bool = False) -> bool:
        """
        Blocks for a sequence prefilled elsewhere; fill them, then set_ready. False while it could not run to its end beside the others. from_cache: what the pool does not hold of it is computed in decode steps.
        """

    def set_confidences(self, id: int, confidences: Sequence[float]) -> None: ...

    def set_cost(self, cost: StepCost) -> None: ...

    def prefill_possible(self) -> bool:
        """Whether a PREFILL step would schedule something now."""

    def take_ignored(self) -> list[tuple[int, int]]:
        """
        (sequence, Ignored) pairs: what plans have ended by themselves since the last call.
        """

    def finish(self, id: int) -> bool: ...

    def set_ready(self, id: int, ready: bool) -> None: ...

    def set_drafts(self, id: int, drafts: Sequence[int]) -> None: ...

    def plan(self, kind: int = 0, *, time_budget_ns: int = 0, companion: bool = False) -> StepPlan: ...

    def commit(self, step: int, num_valid: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> CommitResult:
        """
        int32 arrays, slices in plan order. Raises InvalidField, changing nothing, when they do not fit the step.
        """

    def fail(self, step: int) -> list[int]: ...

    def reset_prefix_cache(self, reset_running: bool = False) -> bool: ...

    def take_sealed(self) -> list[tuple[int, int, list[int], list[int]]]:
        """
        (sequence, index, tokens, blocks group after group) of stretches whose KV has become final; true until a plan.
        """

    def cached_tokens(self, id: int) -> int:
        """Tokens of a sequence that the pool holds now."""

    def import_prefix(self, id: int, num_tokens: int, first: int = 0) -> list[tuple[int, int, int]]:
        """
        (group, position in blocks, block) to fill before any step planned later. Empty: nothing to fill.
        """

    def inspect(self, id: int) -> object:
        """A sequence's counts and blocks as a dict, for tests and explanations."""

    def ref_counts(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """
        References per block, the null block included; for tests and explanations.
        """

    def free_queue(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """
        Free blocks, the next to be handed out first; for tests and explanations.
        """

    def prompted_ids(self) -> list[int]: ...

    def running_ids(self) -> list[int]: ...

    def waiting_ids(self) -> list[int]: ...

    @property
    def num_waiting(self) -> int: ...

    @property
    def num_running(self) -> int: ...

    @property
    def num_prompted(self) -> int: ...

    @property
    def num_unfinished(self) -> int: ...

    @property
    def num_steps_in_flight(self) -> int: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def num_free_blocks(self) -> int: ...

    @property
    def num_used_blocks(self) -> int: ...

    @property
    def capacity_tokens(self) -> int: ...

    @property
    def prefix_queries(self) -> int: ...

    @property
    def prefix_hits(self) -> int: ...

    @property
    def num_preemptions(self) -> int: ...

UNKNOWN_TOKEN: int = -1

NOTHING_DRAWN: int = -2

def fill_unknown_ids(input_ids: Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')], query_start_loc: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], prev_positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], last_sampled: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
    """
    Device-side correction, in place: the only thing a host cannot know when it packs a step while the one before is in flight is a sequence's newest token. input_ids (T,), query_start_loc (S+1,), prev_positions (S,), last_sampled (S_prev,), all int32. Raises InvalidField, changing nothing: a broken plan must never reach a model.
    """

class RowTable:
    """The worker's rows: tokens and block tables of the sequences it holds."""

    def __init__(self, block_size: int, num_groups: int, cp_size: int = 1, cp_rank: int = 0) -> None: ...

    def apply(self, plan: object) -> None: ...

    def sizes(self, plan: object) -> tuple[int, int]:
        """(logits rows, longest block table) of a plan already applied."""

    def num_rows(self, plan: object) -> int:
        """
        Rows this rank computes: the plan's tokens, but in a prompt step that ranks share.
        """

    def pack(self, plan: object, out: object) -> None:
        """Fills the arrays of a PackedBatch, which the caller owns."""

    def take(self, plan: object, room: Callable) -> object:
        """
        apply, sizes and pack in one: room(logits rows, longest block table) makes the batch that is returned.
        """

    def append_each(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """One sampled token for each sequence."""

    def append(self, id: int, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def tokens(self, id: int) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]: ...

    def clear(self) -> None: ...

    def __len__(self) -> int: ...

class StoreIndex:
    """
    A reader of the local store's index that asks LMDB nothing; None: it must be asked.
    """

    def __init__(self, path: str) -> None: ...

    def has(self, names: bytes, name_space: bytes, now: float, lifetimes: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> list | None:
        """
        For each name of 33 bytes (key and kind) whether it may be served, all of one moment.
        """

    def leading(self, names: bytes, name_space: bytes, now: float, lifetimes: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int | None:
        """
        How many names from the start may be served, up to the first that may not.
        """

GRAIN: int = 128

def grain_root(name_space: bytes, salt: str) -> bytes:
    """Where a tenant's chains of stored KV begin."""

def grain_chain(root: bytes, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], keys: ExtraKeys = ...) -> list:
    """One 32-byte key per full grain of 128 tokens."""

def crc32c(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], crc: int = 0) -> int:
    """CRC-32C of bytes, continuing from `crc`."""
