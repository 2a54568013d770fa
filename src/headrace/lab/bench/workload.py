"""The requests that are measured: token ids drawn from a fixed seed, the same for every engine and every run.

Ids are uniform over the ordinary part of a vocabulary. Text would not change the work per token of a dense model, and
drawn ids need no tokenizer on the other side. No two prompts begin alike, so that no prefix cache helps by accident;
where a shared prefix is meant, it is shared in full.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

FIRST_ID, LAST_ID = 1000, 40000  # away from special ids at the front, inside every vocabulary we measure


def draw_prompt(length: int, seed: str) -> list[int]:
    """``length`` ids that depend on ``seed`` alone."""
    drawn = random.Random(f"headrace bench {seed}")
    return [drawn.randrange(FIRST_ID, LAST_ID) for _ in range(length)]


def draw_prompts(count: int, length: int, seed: str, shared: int = 0) -> list[list[int]]:
    """``count`` prompts of ``shared`` common ids followed by ``length`` of their own."""
    prefix = draw_prompt(shared, f"{seed} shared")
    return [prefix + draw_prompt(length, f"{seed} {i}") for i in range(count)]


@dataclass(frozen=True, slots=True)
class Batch:
    """``count`` requests of ``shared + length`` ids that continue for exactly ``max_tokens`` each."""

    count: int
    length: int
    max_tokens: int
    shared: int = 0

    def prompts(self, run: int) -> list[list[int]]:
        """Run ``run``'s prompts; each run has its own, so that runs do not warm each other's caches."""
        return draw_prompts(self.count, self.length, f"{self} {run}", self.shared)

    @property
    def settings(self) -> dict[str, int]:
        """By the names of the options."""
        sizes = {"requests": self.count, "length": self.length, "tokens": self.max_tokens}
        return sizes | ({"shared": self.shared} if self.shared else {})

    @property
    def num_output(self) -> int:
        return self.count * self.max_tokens


OFFLINE = Batch(count=32, length=128, max_tokens=64)
PREFIX = Batch(count=32, length=32, max_tokens=32, shared=1024)
PREFILL_LENGTHS = (512, 4096, 7936)
DECODE_DEPTHS = (128, 4096, 7936)
DECODE_TOKENS = 128
STEP_ROWS = (*range(1, 17), 32)
