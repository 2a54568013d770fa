"""The training loop: one step after another, a function of the recipe alone, resumable where it was saved.

Two runs of one recipe take the same sequences in the same order; on one thread of one machine they give one result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from headrace.models.deepseek_v41.config import V41Config

from .drafts import Drafts
from .recipe import Recipe
from .text import draw
from .weights import TrainedWeights

UNTRAINED = ("vision.", "aligner.", "image_")  # no pictures in the texts
BY_COUNT = ("gate.bias", "gate.bias_vl")  # moved by how many tokens an expert gets, not by gradients


@dataclass(frozen=True, slots=True)
class Progress:
    """Losses of one step, in nats per token; ``accepted`` is the mean over a block's places."""

    step: int
    text: float
    draft: float
    accepted: float


class Training:
    """``weights`` are trained in place."""

    def __init__(self, recipe: Recipe, config: V41Config, weights: TrainedWeights, drafts: Drafts) -> None:
        self.recipe, self.config, self.weights, self.drafts = recipe, config, weights, drafts
        self.backbone = drafts.backbone
        self.trained = [n for n in weights.leaves if not n.startswith(UNTRAINED) and not n.endswith(BY_COUNT)]
        for name in self.trained:
            weights.leaves[name].requires_grad_()
        self.optimizer = torch.optim.AdamW(self._groups(), betas=(0.9, 0.95), fused=True)
        self.generator = torch.Generator().manual_seed(recipe.seed + 1)
        self.done = 0

    def _groups(self) -> list[dict[str, Any]]:
        recipe = self.recipe
        tables = [n for n in self.trained if n.endswith("embed.weight")]
        matrices = [n for n in self.trained if n not in tables and self.weights.leaves[n].dim() == 2]
        vectors = [n for n in self.trained if self.weights.leaves[n].dim() == 1]

        def group(names: list[str], rate: float, decay: float) -> dict[str, Any]:
            leaves = [self.weights.leaves[n] for n in names]
            return {"params": leaves, "lr": rate, "peak": rate, "weight_decay": decay}

        return [
            group(tables, recipe.table_rate, 0.0),
            group(matrices, recipe.rate, recipe.decay),
            group(vectors, recipe.rate, 0.0),
        ]

    def run(self, texts: tuple[Tensor, ...], most: int | None = None) -> Iterator[Progress]:
        """The steps that are left, or the next ``most`` of them."""
        end = self.recipe.steps if most is None else min(self.recipe.steps, self.done + most)
        while self.done < end:
            yield self._step(draw(texts, self.recipe.sequences, self.recipe.length, self.generator))

    def _step(self, drawn: Tensor) -> Progress:
        torch.manual_seed(self.recipe.seed * 100_003 + self.done)  # what Engram drops
        self._set_rates()
        self.weights.rounds = self.done >= self.recipe.round_from * self.recipe.steps
        ids, following = drawn[:, :-1].contiguous(), drawn[:, 1:]
        seen = self.backbone(ids, self.recipe.drop_memory)
        logits = self.backbone.logits(seen.hidden)
        text = functional.cross_entropy(logits, following.flatten())
        targets = logits.detach().unflatten(0, ids.shape)
        anchors = self.drafts.anchors(len(ids), self.recipe.anchors, self.generator)
        draft = self.drafts.losses(ids, seen, targets, anchors)
        loss = text + draft.tokens
        loss = loss + self.recipe.index_weight * seen.index_loss + self.recipe.trust_weight * draft.trust
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([self.weights.leaves[n] for n in self.trained], self.recipe.clip)
        self.optimizer.step()
        self._balance()
        self.done += 1
        return Progress(self.done, text.item(), draft.tokens.item(), draft.accepted.mean().item())

    def _set_rates(self) -> None:
        """Up in ``warmup`` steps, then evenly down to a twentieth."""
        at, recipe = self.done, self.recipe
        share = min((at + 1) / recipe.warmup, 1.0) * max(1 - at / recipe.steps, 0.05)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * share

    def _balance(self) -> None:
        """Experts with fewer tokens than the mean become likelier to be chosen, the others less."""
        for name, load in self.backbone.form.loads.items():
            bias = self.weights.leaves[name]
            bias += self.recipe.balance_step * (load.mean() - load).sign()
            self.weights.leaves[f"{name}_vl"].copy_(bias)

    # -- resuming --------------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        part = path.with_suffix(".part")
        leaves = {name: leaf.detach() for name, leaf in self.weights.leaves.items()}
        state = {"leaves": leaves, "optimizer": self.optimizer.state_dict(), "done": self.done}
        torch.save({**state, "generator": self.generator.get_state()}, part)
        part.replace(path)

    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        with torch.no_grad():
            for name, leaf in self.weights.leaves.items():
                leaf.copy_(state["leaves"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        self.done = state["done"]
