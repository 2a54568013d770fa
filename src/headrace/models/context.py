"""ForwardContext: everything a forward pass reads besides parameters. Passed to each layer, never global."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from headrace.contract.layout import Layout
from headrace.contract.picture import Eyes, Picture
from headrace.contract.stats import ExpertLoad
from headrace.kernels.ops import Ops
from headrace.parallel.eplb.stats import RebalanceConfig
from headrace.parallel.exchange import Exchange


@dataclass(frozen=True, slots=True)
class GroupIndex:
    """Where one KV group's tokens live: block_table (S, max_blocks) int32, slots (T,) int32 (-1 = padding)."""

    block_table: Tensor
    slots: Tensor


@dataclass(frozen=True, slots=True)
class LayerKV:
    """One layer's cache: k and v (num_blocks, num_kv_heads, block_size, row), and its group's number.

    Rows as ``kernels.kv_rows`` says. A model of a ``RecordLayout`` has one for all groups: k and v are the same
    (num_blocks, 1, block_size, bytes) uint8.
    """

    k: Tensor
    v: Tensor
    group: int


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """One packed step: T tokens in S slices (see ``kernels.ops`` for the letters)."""

    ops: Ops
    input_ids: Tensor  # (T,) int32
    positions: Tensor  # (T,) int32
    query_start_loc: Tensor  # (S+1,) int32
    seq_lens: Tensor  # (S,) int32
    groups: Sequence[GroupIndex]
    layers: Sequence[LayerKV]
    known_lens: Tensor | None = None  # (S,) int32 tokens known of each sequence, later steps' too; None: seq_lens
    replaced: tuple[Tensor, Tensor] | None = None  # rows (P,) int64 that are pictures, and what is there (P, hidden)


class Model(Protocol):
    """A runnable model. ``forward`` gives hidden states, ``logits`` is asked only for rows that are sampled."""

    vocab_size: int
    max_positions: int

    @property
    def kv_layout(self) -> Layout: ...

    @property
    def capturable(self) -> bool:
        """Whether a step can be recorded as a program: which ops run must not depend on values."""
        ...

    def forward(self, ctx: ForwardContext) -> Tensor:
        """Hidden states (T, hidden) before the final norm."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and LM head: (R, hidden) -> (R, V) float32."""
        ...

    def greedy_ids(self, hidden: Tensor) -> Tensor:
        """What greedy sampling draws from ``logits``, without making them: (R, hidden) -> (R,) int32."""
        ...


@runtime_checkable
class EarlyExit(Protocol):
    """A model that can stop early: its first layers alone, with the same final norm and head, guess what it will
    say."""

    def first_layers(self, count: int) -> Model:
        """The model of layers 0 .. count - 1; shares parameters, and their KV is the whole model's."""
        ...


@runtime_checkable
class HasEyes(Protocol):
    """A model that reads pictures."""

    eyes: Eyes

    def picture_rows(self, picture: Picture) -> Tensor:
        """(rows, hidden): what stands in the prompt in place of embeddings; a function of the content alone."""
        ...


@runtime_checkable
class SkipsRows(Protocol):
    """A model that can do without most of a long prompt in some of its layers."""

    def skip_rows(self, keep: int) -> None:
        """From now on only the last ``keep`` tokens known of a sequence are computed in all layers; other rows have no
        hidden state. ``ForwardContext.known_lens`` must be given. Raises ConfigError for a ``keep`` that is too small.
        """
        ...


@runtime_checkable
class SharesExperts(Protocol):
    """A model whose routed experts can be spread over the ranks of a group."""

    def share_experts(self, exchange: Exchange, rebalance: RebalanceConfig | None) -> None:
        """Joins the group: from now on all ranks run the same steps. ``rebalance`` None: experts never move."""
        ...

    @property
    def shared(self) -> bool:
        """Whether other ranks run every step too, and wait in it for this one."""
        ...

    def leave(self) -> None:
        """No step comes from here any more: ranks that wait for one get GroupBroken."""
        ...

    def company(self) -> None:
        """A step in which only other ranks have rows. Nothing happens where experts are not shared."""
        ...

    def expert_load(self) -> ExpertLoad:
        """What experts have done since the start; any thread may ask."""
        ...


@dataclass(frozen=True, slots=True)
class OpenBlocks:
    """Drafts in the making: hidden (S, B, D) and base logits (S, B, V) of every place of every sequence's block."""

    hidden: Tensor
    base: Tensor


class DraftHeads(Protocol):
    """Heads that draft a block at once from what the model's forwards left in the pool.

    Rows of what was rejected are written again before they are read: a draft follows from the tokens that stand.
    """

    @property
    def block(self) -> int:
        """Places of a block."""
        ...

    def open(
        self, kv: Sequence[LayerKV], groups: Sequence[GroupIndex], tokens: Sequence[int], positions: Sequence[int]
    ) -> OpenBlocks:
        """``tokens`` (S,) are the sequences' last ones, whose own forward is still to come, at ``positions`` (S,)."""
        ...

    def row(self, opened: OpenBlocks, place: int, before: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (S, V) and confidence logits (S,) of one place, given the tokens ``before`` (S,) int32 it."""
        ...


@runtime_checkable
class HasDraftHeads(Protocol):
    """A model with draft heads of its own."""

    def keep_draft_records(self) -> None:
        """From now on forwards leave what the heads read; ``kv_layout`` grows. Before the pool is made."""
        ...

    def draft_heads(self) -> DraftHeads:
        """The heads, of a model that keeps draft records."""
        ...


@runtime_checkable
class HasKVFacts(Protocol):
    """A model whose KV depends on more than its weights' files, its layout and its arithmetic."""

    def kv_facts(self) -> list[tuple[str, str]]:
        """What more, by name, as text: models that differ in it must never read one another's KV."""
        ...
