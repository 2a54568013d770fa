"""Draft layers in training form: many blocks of each sequence at once, each seeing only what it would see in serving.

A block starts at an anchor, a known token; it sees the features of positions before it and itself, both ways. The
Markov head is fed the true tokens; the confidence head learns how much of a drafted token the backbone would accept.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from .backbone import Backbone, Seen
from .form import Form, attend, block, collapse, heads_of, project_out, query_latent, window_keys


@dataclass(frozen=True, slots=True)
class DraftLosses:
    """``tokens``: cross entropy with the backbone's own distribution · ``trust``: of the confidence head · ``accepted``
    (block,): mean share of a draft's mass that the backbone accepts, per place."""

    tokens: Tensor
    trust: Tensor
    accepted: Tensor


class Drafts:
    """The draft layers over a backbone's forms and weights."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone, self.form = backbone, backbone.form
        self.block = self.form.config.draft.block
        self.last = f"mtp.{self.form.config.draft.num_layers - 1}."

    def anchors(self, sequences: int, count: int, generator: torch.Generator) -> Tensor:
        """(B, count) ascending positions whose whole block has tokens."""
        room = self.backbone.length - self.block
        drawn = torch.stack([torch.randperm(room, generator=generator)[:count] for _ in range(sequences)])
        return drawn.sort(1).values

    def losses(self, ids: Tensor, seen: Seen, targets: Tensor, anchors: Tensor) -> DraftLosses:
        """``targets`` (B, S, V): the backbone's logits, detached."""
        places = anchors.unsqueeze(2) + torch.arange(self.block)  # (B, A, block)
        rows = torch.arange(len(ids)).view(-1, 1, 1)
        wanted = targets[rows, places].flatten(0, 2).log_softmax(-1)
        hidden = self.hidden(ids, seen.features, anchors)
        markov = self.form.weights.rows(f"{self.last}markov_head.embed.weight", ids[rows, places].flatten())
        logits = self.logits(hidden, markov)
        drafted = logits.log_softmax(-1)
        tokens = -(wanted.exp() * drafted).sum(-1).mean()
        accepted = torch.minimum(wanted, drafted.detach()).exp().sum(-1)
        trust = functional.binary_cross_entropy_with_logits(self.confidence(hidden, markov), accepted.clamp(0, 1))
        return DraftLosses(tokens, trust, accepted.view(-1, self.block).mean(0))

    def hidden(self, ids: Tensor, features: Tensor, anchors: Tensor) -> Tensor:
        """(B * A * block, H): the collapsed streams, before the norm."""
        form, draft = self.form, self.form.config.draft
        b, count = anchors.shape
        block_ids = torch.full((b, count, self.block), draft.noise_id)
        block_ids[:, :, 0] = ids.gather(1, anchors)
        positions = (anchors.unsqueeze(2) + torch.arange(self.block)).flatten()
        rows = form.weights.rows("embed.weight", block_ids.flatten())
        trunk = rows.unsqueeze(1).repeat(1, form.config.streams, 1)
        pre = torch.zeros(len(rows), form.config.streams)
        pre[:, 0] = 1.0
        context = form.norm(form.linear(features, "mtp.0.main_proj"), "mtp.0.main_norm")
        visible = self._visible(anchors)
        for layer in range(draft.num_layers):
            at = f"mtp.{layer}."
            trunk, pre = block(
                form,
                at,
                draft.moe,
                trunk,
                pre,
                lambda x, at=at: self._attention(f"{at}attn.", x, context, positions, visible),  # type: ignore[misc]
            )
        return collapse(trunk, pre)

    def _visible(self, anchors: Tensor) -> Tensor:
        """(B, A * block, S + A * block): the window before the anchor, and the own block."""
        places = torch.arange(self.backbone.length)
        anchor = anchors.unsqueeze(2)
        context = (places < anchor) & (places >= anchor - self.form.config.window)
        context = context.repeat_interleave(self.block, 1)
        numbers = torch.arange(anchors.shape[1]).repeat_interleave(self.block)
        own = (numbers == numbers.unsqueeze(1)).expand(len(anchors), -1, -1)
        return torch.cat((context, own), dim=2)

    def _attention(self, at: str, x: Tensor, context: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        form, rotary, b = self.form, self.backbone.rotary.window, len(visible)
        everywhere = torch.arange(self.backbone.length).repeat(b)
        past = window_keys(form, at, context, rotary, everywhere).unflatten(0, (b, -1))
        own = window_keys(form, at, x, rotary, positions).unflatten(0, (b, -1))
        query = heads_of(form, at, query_latent(form, at, x), rotary, positions).unflatten(0, (b, -1))
        seen, _ = attend(form, query, torch.cat((past, own), dim=1), visible, form.weights(f"{at}attn_sink"))
        return project_out(form, at, seen.flatten(0, 1), rotary, positions)

    def logits(self, hidden: Tensor, markov: Tensor) -> Tensor:
        """(R, V). The shared head is the backbone's to train: drafts take it as it is."""
        normed = self.form.norm(hidden, f"{self.last}norm")
        base = self.form.product(normed, self.form.weights("head.weight").detach().t())
        return base + self.form.linear(markov, f"{self.last}markov_head.head")

    def confidence(self, hidden: Tensor, markov: Tensor) -> Tensor:
        """(R,) logits, of detached states: trust must not bend what it speaks of."""
        joined = torch.cat((hidden.detach(), markov.detach()), dim=1)
        return (joined @ self.form.weights(f"{self.last}confidence_head.proj.weight").t()).squeeze(1)


def draft_form(form: Form, token_map: Tensor, length: int) -> tuple[Backbone, Drafts]:
    """Both halves over one form."""
    backbone = Backbone(form, token_map, length)
    return backbone, Drafts(backbone)
