"""The V4.1 forward pass over packed rows. Calls ops, creates no parameters, keeps nothing between steps."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from headrace.contract.errors import ConfigError
from headrace.contract.layout import RecordLayout
from headrace.contract.picture import Picture
from headrace.contract.stats import ExpertLoad
from headrace.kernels.ops import Ops
from headrace.models.context import ForwardContext
from headrace.parallel.eplb.balancer import ExpertShare
from headrace.parallel.eplb.stats import RebalanceConfig
from headrace.parallel.exchange import Exchange

from .arithmetic import Arithmetic
from .compression import compress
from .config import V41Config
from .cost import step_cost
from .draft_context import context_records
from .drafting import V41DraftHeads
from .expert_ranks import ParallelExperts
from .experts import LOCAL, RoutedExperts
from .layer import run_layer
from .mixing import collapse, first_pre
from .params import LayerParams, V41Params
from .records import draft_layers
from .records import kv_layout as layout_of
from .step import Step, begin_step
from .truncation import COMPACT, OFF, Truncation, check_truncation
from .vision import Tower


class V41Model:
    """A ``Model`` (see ``models.context``). ``ops`` must be the backend that packed the weights."""

    capturable = False  # which rows are read depends on values, so no step can be replayed as a program

    def __init__(
        self,
        config: V41Config,
        params: V41Params,
        layout: RecordLayout,
        ops: Ops,
        mode: str,
        share: ExpertShare | None = None,
    ) -> None:
        """``share``: the routed experts that ``params`` hold; None: all of them."""
        self.config, self.params, self.mode = config, params, mode
        self.arithmetic = Arithmetic(ops, mode)
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_positions
        self.kv_layout = layout
        self.step_cost = step_cost(config)
        self.truncation = Truncation()
        self.drafts = False
        self.experts: RoutedExperts = LOCAL
        self._share = share
        self._tower = Tower(config, params.vision, self.arithmetic)
        self.eyes = self._tower.eyes

    def kv_facts(self) -> list[tuple[str, str]]:
        """As ``HasKVFacts`` has it: the ids that Engram hashes come from a tokenizer, which no weights name."""
        token_map = self.params.token_map
        digest = hashlib.sha256(token_map.numpy().astype("<i4").tobytes()).hexdigest()
        return [("token map", digest)] if len(token_map) else []

    def keep_draft_records(self) -> None:
        """From now on every forward leaves what draft layers see of its tokens, in a KV group of their own. Before the
        pool is made. Errors: ConfigError where prompts are truncated: rows would be missing."""
        if self.truncation.mode != OFF:
            raise ConfigError("speculation", "draft_heads needs every row of the decoder half: no truncation")
        self.drafts, self.kv_layout = True, layout_of(self.config, drafts=True)

    def draft_heads(self) -> V41DraftHeads:
        """Heads over the pool that this model's forwards write."""
        return V41DraftHeads(self)

    def truncate(self, truncation: Truncation) -> None:
        """Settles what later prompts skip. Errors: ConfigError as ``check_truncation``."""
        check_truncation(truncation, self.config)
        self.truncation = truncation

    def skip_rows(self, keep: int) -> None:
        """As ``SkipsRows`` has it: ``compact``."""
        self.truncate(Truncation(COMPACT, keep))

    def share_experts(self, exchange: Exchange, rebalance: RebalanceConfig | None) -> None:
        """From now on every step is one of all ranks of ``exchange``. ``rebalance``: when experts move; None: never.
        A model that was loaded with all experts shares none."""
        assert self._share is not None, "loaded with all experts"
        layers = [layer.moe for layer in self.params.layers]
        about = (self.arithmetic, self.config)
        self.experts = ParallelExperts(exchange, self._share, layers, *about, rebalance)

    @property
    def shared(self) -> bool:
        return isinstance(self.experts, ParallelExperts)

    def leave(self) -> None:
        if isinstance(self.experts, ParallelExperts):
            self.experts.leave()

    def company(self) -> None:
        """A step of the other ranks."""
        self.experts.company(self)

    def expert_load(self) -> ExpertLoad:
        """May be asked by any thread."""
        return self.experts.load if isinstance(self.experts, ParallelExperts) else ExpertLoad()

    def forward(self, ctx: ForwardContext) -> Tensor:
        """Hidden states (T, hidden): the streams' last collapse, before the final norm."""
        with self.experts.step():
            rows = self.embed(ctx.input_ids)
            if ctx.replaced is not None:
                rows = rows.index_copy(0, *ctx.replaced)
            return self.run(self.begin(ctx), rows)

    def picture_rows(self, picture: Picture) -> Tensor:
        """As ``Tower`` has it."""
        return self._tower.picture_rows(picture)

    def begin(self, ctx: ForwardContext) -> Step:
        config, token_map = self.config, self.params.token_map
        about = (config, token_map, self.mode, self.truncation)
        return begin_step(ctx, *about, drafts=self.drafts, experts=self.experts)

    def run(self, step: Step, rows: Tensor) -> Tensor:
        """All layers for a step that was begun, from embedded ``rows`` (T, hidden)."""
        trunk, pre = self.spread(rows)
        kept = torch.arange(len(rows))
        for layer, params in enumerate(self.params.layers):
            if layer == self.config.topology.first_decoder and self.truncation.mode == COMPACT:
                kept = step.kept()
                step = self._narrowed(step, layer, params, trunk, pre, kept)
                trunk, pre = trunk[kept], pre[kept]
            trunk, pre = run_layer(step, layer, params, trunk, pre)
        if self.drafts:
            self._keep_features(step)
        # Rows that were dropped have no hidden state: whoever asks for one is to see that.
        return torch.full_like(rows, torch.nan).index_copy(0, kept, self.collapse(trunk, pre))

    def _keep_features(self, step: Step) -> None:
        """What the taps saw, as records of the draft layers' windows. Rows of rejected tokens are written again."""
        assert step.features is not None
        features = torch.cat([step.features[layer] for layer in self.config.draft.taps], dim=1)
        kept = context_records(step, self.params.draft, features, step.positions)
        for layer, records in zip(draft_layers(self.config), kept):
            step.pages.write(step.records.window[layer], step.slice_of, step.positions, records)

    def _narrowed(self, step: Step, layer: int, params: LayerParams, trunk: Tensor, pre: Tensor, kept: Tensor) -> Step:
        """Compresses all rows as the layer's own attention would, then keeps some: later layers need no others."""
        hidden = self.arithmetic.stored(collapse(trunk, pre))
        compress(step, layer, params, self.arithmetic.norm(hidden, params.attention_norm, self.config.norm_eps))
        return step.narrowed(kept, compressed=layer)

    def embed(self, input_ids: Tensor) -> Tensor:
        """(T,) -> (T, hidden)."""
        return self.arithmetic.ops.embedding(input_ids, self.params.embedding)

    def spread(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Trunk (T, m, hidden) and first pre-mix (T, m): every stream starts as the token's embedding."""
        streams = self.config.streams
        return rows.unsqueeze(1).repeat(1, streams, 1), first_pre(len(rows), streams)

    def collapse(self, trunk: Tensor, pre: Tensor) -> Tensor:
        """The last sub-layer's pre-mix, which no sub-layer reads, joins the streams."""
        return self.arithmetic.stored(collapse(trunk, pre))

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and LM head: (R, hidden) -> (R, V) float32."""
        normed = self.arithmetic.norm(hidden, self.params.norm, self.config.norm_eps)
        return self.arithmetic.exact_linear(normed, self.params.head)

    def greedy_ids(self, hidden: Tensor) -> Tensor:
        """(R, hidden) -> (R,) int32: the lowest id of the largest logits, -1 for a row without a finite maximum."""
        best = self.logits(hidden).nan_to_num(nan=-torch.inf).max(dim=-1)
        ids = best.indices.to(torch.int32)
        return torch.where(best.values.isfinite(), ids, torch.full_like(ids, -1))
