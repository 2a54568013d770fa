"""What a baseline is made of: samples in a fixed order. Three groups: perplexity, tokens, and long context by itself.

With a tokenizer the samples are windows of the pinned text; without one they are drawn ids. The order is part of the
format: ranks own a sample by its index.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.api.llm import LLM
from headrace.contract.errors import ConfigError
from headrace.contract.request import SamplingParams
from headrace.lab.bench.corpus import corpus_text

GROUPS = ("perplexity", "tokens", "long")
COUNTS = {"perplexity": 8, "tokens": 8, "long": 2}
LENGTHS = {"perplexity": 256, "tokens": 40, "long": 2048}
NEW_TOKENS = {"perplexity": 1, "tokens": 16, "long": 8}
TINY = Path(__file__).with_name("tiny.json")
"""Configuration of a model with dummy weights, small enough to be checked everywhere."""
SEED = 1000  # of the samples that draw


@dataclass(frozen=True, slots=True)
class Sample:
    """``index`` counts over the whole suite. ``name`` is ``group/number``."""

    index: int
    group: str
    number: int
    ids: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.group}/{self.number}"

    @property
    def inputs(self) -> str:
        """A digest of what is asked, so that another question is told from another answer. Plain values only: a new
        field of SamplingParams is no other question."""
        wishes = self.params
        asked = (wishes.max_tokens, wishes.temperature, wishes.seed, wishes.prompt_logprobs)
        text = f"{self.group} {','.join(map(str, self.ids))} {asked}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def params(self) -> SamplingParams:
        """Every second sample of ``tokens`` draws with a seed, the others are greedy; the rest is scored."""
        drawn = self.group == "tokens" and self.number % 2 == 1
        return SamplingParams(
            max_tokens=NEW_TOKENS[self.group],
            temperature=1.0 if drawn else 0.0,
            seed=SEED + self.number,
            ignore_eos=True,
            logprobs=0,
            prompt_logprobs=None if self.group == "tokens" else 0,
        )


def suite(llm: LLM, offline: bool) -> list[Sample]:
    """All samples for this model. Raises ConfigError when its context is too short, PullError without the text."""
    needed = max(LENGTHS[group] + NEW_TOKENS[group] for group in GROUPS)
    if llm.max_model_len < needed:
        raise ConfigError("max_model_len", f"the long samples need {needed} tokens, there are {llm.max_model_len}")
    if llm.tokenizer is None:
        return _cut(_drawn(llm.vocab_size, _total()))
    ids = llm.tokenizer.encode(corpus_text(offline=offline))
    if len(ids) < _total():
        raise ConfigError("model", f"its tokenizer makes {len(ids)} tokens of the text; {_total()} are needed")
    return _cut(ids)


def _groups() -> list[str]:
    """Of every sample, in order."""
    return [group for group in GROUPS for _ in range(COUNTS[group])]


def _total() -> int:
    return sum(COUNTS[group] * LENGTHS[group] for group in GROUPS)


def _cut(ids: Sequence[int]) -> list[Sample]:
    samples: list[Sample] = []
    at = 0
    for group in GROUPS:
        for number in range(COUNTS[group]):
            samples.append(Sample(len(samples), group, number, tuple(ids[at : at + LENGTHS[group]])))
            at += LENGTHS[group]
    return samples


def _drawn(vocab_size: int, count: int) -> list[int]:
    """Ids from a hash: the same on every machine and with every version of anything."""
    return [
        int.from_bytes(hashlib.sha256(f"headrace golden {i}".encode()).digest()[:8], "little") % vocab_size
        for i in range(count)
    ]


@dataclass(frozen=True, slots=True)
class Share:
    """Which samples are looked at: a group or all, and of those what rank ``rank`` of ``world`` owns."""

    group: str | None = None
    rank: int = 0
    world: int = 1

    def check(self) -> None:
        """Raises ConfigError naming the setting."""
        if self.group is not None and self.group not in GROUPS:
            raise ConfigError("group", f"must be one of {', '.join(GROUPS)}, got {self.group!r}")
        if self.world < 1:
            raise ConfigError("world", f"must be at least 1, got {self.world}")
        if not 0 <= self.rank < self.world:
            raise ConfigError("rank", f"must lie between 0 and {self.world - 1}, got {self.rank}")
        owned = sum(self.owns(index, group) for index, group in enumerate(_groups()))
        if not owned:
            raise ConfigError("rank", f"{self.rank} of {self.world} owns no sample, so nothing would be compared")

    @property
    def whole(self) -> bool:
        return self.group is None and self.world == 1

    def owns(self, index: int, group: str) -> bool:
        return index % self.world == self.rank and self.group in (None, group)
