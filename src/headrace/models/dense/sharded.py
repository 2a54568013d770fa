"""A dense model of which every rank of a group holds some heads, some of the MLP and some rows of every matrix.

All ranks run the same steps, each with KV of its own heads; hidden states are the same on every rank, to the bit those
of one. Embedding and LM head are whole everywhere.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from headrace.contract.errors import GroupBroken
from headrace.models.context import ForwardContext
from headrace.parallel.exchange import Exchange
from headrace.parallel.tensor import TensorShare, gathered

from .config import DenseConfig
from .forward import DenseModel


def rank_config(config: DenseConfig, share: TensorShare) -> DenseConfig:
    """What one rank computes of a layer. Raises ConfigError for a shape that ranks cannot share."""
    share.count(config.hidden_size, "columns of hidden states")
    return replace(
        config,
        num_heads=share.count(config.num_heads, "attention heads"),
        num_kv_heads=share.count(config.num_kv_heads, "key and value heads"),
        intermediate_size=share.count(config.intermediate_size, "columns of the MLP"),
    )


class ShardedModel(DenseModel):
    """One rank's part. To be joined to its group before it runs."""

    capturable = False  # ranks meet inside a step
    exchange: Exchange | None = None

    def join(self, exchange: Exchange) -> None:
        """From now on every forward is one of all ranks of ``exchange``."""
        self.exchange = exchange

    def forward(self, ctx: ForwardContext) -> Tensor:
        """As ``DenseModel``. Raises GroupBroken when a rank is gone, or fails in here while others wait for it."""
        assert self.exchange is not None, "not joined to a group"
        try:
            return super().forward(ctx)
        except GroupBroken:
            raise
        except Exception as error:
            self.exchange.close()
            rank, size = self.exchange.rank, self.exchange.size
            raise GroupBroken(f"rank {rank} of {size} failed in a step that others share: {error}") from error

    def _whole(self, part: Tensor, runs: int = 1) -> Tensor:
        assert self.exchange is not None
        return gathered(self.exchange, part, runs)
