"""The backbone in training form: sequences of one length, from position 0, all keys at once under masks.

Besides logits it gives what else is trained on: the features that draft layers read, and how far each indexer is from
choosing what its layer attends to. It writes no cache and knows no chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.kernels.selection import best_entries, members
from headrace.models.deepseek_v41 import quantise
from headrace.models.deepseek_v41.engram_hash import HashTables, hash_tables, ngrams, table_rows
from headrace.models.deepseek_v41.tensor_ops import rotate_tail

from .form import Form, Rotary, attend, block, collapse, heads_of, project_out, query_latent, window_keys

LEAST_DOT = 1e-6
UNSEEN = -1e30  # a score; finite, so that rows without any entry keep finite gradients


@dataclass(slots=True)
class Seen:
    """One forward. hidden (T, H): before the final norm · features (T, taps * H), detached · index_loss: a mean."""

    hidden: Tensor
    features: Tensor
    index_loss: Tensor


@dataclass(slots=True)
class _Shared:
    """What layers hand on: compressed keys by layer, and the latest selection (B, S, n) bool."""

    keys: dict[int, Tensor]
    index_keys: dict[int, Tensor]
    selected: Tensor | None
    index_losses: list[Tensor]


class Backbone:
    """``token_map`` (vocab,): compressed ids. ``length``: of every sequence, even."""

    def __init__(self, form: Form, token_map: Tensor, length: int) -> None:
        self.form, self.length = form, length
        self.token_map = token_map
        self.rotary = Rotary(form.config, length)
        engram = form.config.engram
        listed = [] if engram is None else hash_tables(engram, int(token_map.max()) + 1)
        self.hashes: dict[int, HashTables] = {} if engram is None else dict(zip(engram.layers, listed))
        places = torch.arange(length)
        near = (places <= places.unsqueeze(1)) & (places > places.unsqueeze(1) - form.config.window)
        self.window = near.unsqueeze(0)

    def __call__(self, ids: Tensor, drop_memory: float = 0.0) -> Seen:
        """``ids`` (B, S) int64. ``drop_memory``: share of Engram's rows that are left out, against rote learning."""
        form, config = self.form, self.form.config
        positions = torch.arange(self.length).repeat(len(ids))
        rows = form.weights.rows("embed.weight", ids.flatten())
        trunk = rows.unsqueeze(1).repeat(1, config.streams, 1)
        pre = torch.zeros(len(rows), config.streams)
        pre[:, 0] = 1.0
        grams, features, shared = self._grams(ids), [], _Shared({}, {}, None, [])
        for layer in range(config.num_layers):
            if layer in self.hashes:
                trunk = self._recall(layer, trunk, grams, drop_memory)
            if layer in config.draft.taps:
                features.append(trunk.detach().mean(1))
            trunk, pre = block(
                form,
                f"layers.{layer}.",
                config.moe,
                trunk,
                pre,
                lambda x, layer=layer: self._attention(layer, x, positions, shared),  # type: ignore[misc]
            )
        losses = shared.index_losses
        return Seen(collapse(trunk, pre), torch.cat(features, dim=1), torch.stack(losses).mean())

    def logits(self, hidden: Tensor) -> Tensor:
        return self.form.linear(self.form.norm(hidden, "norm"), "head")

    # -- Engram ----------------------------------------------------------------------------------------------------

    def _grams(self, ids: Tensor) -> Tensor:
        engram = self.form.config.engram
        if engram is None:
            return torch.empty(ids.numel(), 0)
        pad, none = int(self.token_map[engram.pad_id]), torch.empty(0, dtype=torch.int32)
        return torch.cat([ngrams(none, self.token_map[row], pad, engram.longest) for row in ids])

    def _recall(self, layer: int, trunk: Tensor, grams: Tensor, drop: float) -> Tensor:
        form, config, at = self.form, self.form.config, f"layers.{layer}.engram."
        assert config.engram is not None
        rows = table_rows(grams, self.hashes[layer], config.engram.num_heads)
        recalled = form.weights.rows(f"{at}embed.weight", rows)  # (T, tables, dim)
        if drop:
            recalled = recalled * (torch.rand(rows.shape) >= drop).unsqueeze(2)
        keys, value = form.linear(recalled.flatten(1), f"{at}wkv").split(
            (config.streams * config.hidden_size, config.hidden_size), dim=1
        )
        weight = form.weights(f"{at}q_weight") * form.weights(f"{at}k_weight")
        agreed = form.bare_norm(trunk) * form.bare_norm(keys.unflatten(1, (config.streams, -1))) * weight
        dot = agreed.sum(2) * config.hidden_size**-0.5
        gate = torch.sigmoid(dot.sign() * dot.abs().clamp(min=LEAST_DOT).sqrt())
        return trunk + gate.unsqueeze(2) * value.unsqueeze(1)

    # -- attention -------------------------------------------------------------------------------------------------

    def _attention(self, layer: int, x: Tensor, positions: Tensor, shared: _Shared) -> Tensor:
        form, topology, at = self.form, self.form.config.topology, f"layers.{layer}.attn."
        ratio = topology.ratios[layer]
        rotary = self.rotary.compressed if ratio else self.rotary.window
        latent = query_latent(form, at, x)
        query = self._fold(heads_of(form, at, latent, rotary, positions))
        keys, visible = self._fold(window_keys(form, at, x, rotary, positions)), self.window
        scores = None
        if topology.owns_kv(layer):
            self._compress(layer, x, shared)
        if topology.owns_index(layer):
            scores, shared.selected = self._select(layer, latent, x, positions, shared)
        if ratio:
            assert shared.selected is not None
            keys = torch.cat((keys, shared.keys[topology.kv_sources[layer]]), dim=1)
            visible = torch.cat((visible.expand(len(keys), -1, -1), shared.selected), dim=2)
        seen, weights = attend(form, query, keys, visible, form.weights(f"{at}attn_sink"))
        if scores is not None:
            attended = weights.detach()[..., self.length :].sum(2)
            shared.index_losses.append(_disagreement(scores, attended))
        return project_out(form, at, seen.flatten(0, 1), rotary, positions)

    def _fold(self, rows: Tensor) -> Tensor:
        return rows.unflatten(0, (-1, self.length))

    def _compress(self, layer: int, x: Tensor, shared: _Shared) -> None:
        form, topology, at = self.form, self.form.config.topology, f"layers.{layer}.attn."
        ratio, latent = topology.ratios[layer], form.linear(x, f"{at}compressor.wkv")
        if ratio == 2:
            score = form.linear(x, f"{at}compressor.wgate")
            share = score.unflatten(0, (-1, 2)).softmax(1)
            latent = (share * latent.unflatten(0, (-1, 2))).sum(1)
        latent = form.norm(latent, f"{at}compressor.norm")
        positions = torch.arange(0, self.length, ratio).repeat(len(x) // self.length)
        count = self.length // ratio
        if topology.owns_index_keys(layer):
            key = form.norm(form.linear(latent.detach(), f"{at}indexer.wk"), f"{at}indexer.k_norm")
            key = form.weights.through(rotate_tail(key, self.rotary.compressed, positions), _narrowest)
            shared.index_keys[layer] = key.unflatten(0, (-1, count))
        rotated = rotate_tail(latent, self.rotary.compressed, positions)
        kv = form.weights.through(rotated, _kv4 if form.config.narrow_kv else quantise.round_mxfp8)
        shared.keys[layer] = kv.unflatten(0, (-1, count))

    def _select(
        self, layer: int, latent: Tensor, x: Tensor, positions: Tensor, shared: _Shared
    ) -> tuple[Tensor, Tensor]:
        """Scores (B, S, n), ``UNSEEN`` where nothing is to be seen yet, and who is selected. All candidates are in: the
        length must not exceed what candidate blocks hold."""
        form, config, at = self.form, self.form.config, f"layers.{layer}.attn.indexer."
        # Detached: indexers learn from what attention does, never attention from them.
        query = form.linear(latent.detach(), f"{at}wq_b").unflatten(1, (config.index_heads, -1))
        query = form.weights.through(rotate_tail(query, self.rotary.compressed, positions), _narrowest)
        weight = form.linear(x.detach(), f"{at}weights_proj") * config.index_dim**-0.5 * config.index_heads**-0.5
        keys = shared.index_keys[config.topology.index_key_sources[layer]]
        folded = self._fold(query)
        products = form.product(folded.flatten(1, 2), keys.transpose(1, 2)).unflatten(1, folded.shape[1:3])
        scores = (products.relu() * self._fold(weight).unsqueeze(3)).sum(2)
        seen = (torch.arange(self.length) + 1) // config.topology.ratios[layer]
        hidden = torch.arange(keys.shape[1]) >= seen.unsqueeze(1)
        flat, visible = scores.detach().flatten(0, 1), seen.repeat(len(keys))
        chosen = members(best_entries(flat, visible, config.index_topk), keys.shape[1])
        return scores.masked_fill(hidden, UNSEEN), self._fold(chosen)


def _disagreement(scores: Tensor, attended: Tensor) -> Tensor:
    """Cross entropy between what attention looked at, of the selected entries, and what the index says; rows that look
    at nothing are left out."""
    total = attended.sum(-1)
    looked = total > 0
    log = scores.log_softmax(-1)
    wanted = attended / total.clamp(min=1e-12).unsqueeze(-1)
    return -(wanted * log).sum(-1)[looked].mean()


def _narrowest(x: Tensor) -> Tensor:
    return quantise.unpack_mxfp4(*quantise.pack_mxfp4(x))


def _kv4(x: Tensor) -> Tensor:
    return quantise.unpack_kv4(quantise.pack_kv4(x))
