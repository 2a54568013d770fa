"""The worked examples of the phased discipline; see ``worked_examples.py``. Their numbers are contracts."""

from __future__ import annotations

from pathlib import Path

from headrace._core import StepCost
from headrace.contract.plan import Role, StepKind

from .example_script import Script, prompt_of


def d_e1(path: Path) -> None:
    script = Script(
        path,
        "D-E1: a prompt step of 6 and 3 tokens, then decode steps; keys 7 and 4 in the first of them",
        "AB",
        num_blocks=33,
        block_size=16,
        token_budget=16,
        max_model_len=128,
        role=int(Role.NORMAL),
    )
    script.add("A", prompt_of("A", 6))
    script.add("B", prompt_of("B", 3))
    script.step(kind=StepKind.PREFILL)
    script.step(kind=StepKind.DECODE)
    script.recorder.close()


def decode_order(path: Path) -> None:
    """Output lengths are C 2, A 7 and B 5 before the last step, which finds no free block: C is served first and needs
    one, A gives way."""
    script = Script(
        path,
        "Decode order: outputs 7, 5 and 2; served from the shortest on; the longest, A, is the first to give way",
        "ABC",
        num_blocks=10,
        block_size=4,
        token_budget=16,
        max_model_len=64,
        prefix_caching=False,
        role=int(Role.NORMAL),
    )
    script.add("A", prompt_of("A", 6))
    script.step(kind=StepKind.PREFILL)
    script.step(kind=StepKind.DECODE)
    script.step(kind=StepKind.DECODE)
    script.add("B", prompt_of("B", 5))
    script.step(kind=StepKind.PREFILL)
    for _ in range(3):
        script.step(kind=StepKind.DECODE)
    script.add("C", prompt_of("C", 11))
    script.step(kind=StepKind.PREFILL)
    script.step(kind=StepKind.DECODE)
    script.step(kind=StepKind.DECODE)
    script.recorder.close()


def d_e3(path: Path) -> None:
    """The example is step 1: of two drafts each, one is worth verifying."""
    script = Script(
        path,
        "D-E3 (step 1): what verifying costs and brings decides; 4 rows in all, 2 for A and 2 for B",
        "AB",
        num_blocks=33,
        block_size=16,
        token_budget=16,
        lookahead=2,
        max_model_len=128,
        role=int(Role.NORMAL),
    )
    script.price(StepCost(sizes=[2, 4, 6], times_ms=[1.0, 1.2, 2.0]))
    script.add("A", prompt_of("A", 6))
    script.add("B", prompt_of("B", 3))
    script.step(kind=StepKind.PREFILL)
    for name, confidences in {"A": [0.9, 0.5], "B": [0.8, 0.25]}.items():
        script.draft(name, [21, 22])
        script.judge(name, confidences)
    script.step({"A": [21, 9], "B": [9]}, kind=StepKind.DECODE)
    script.recorder.close()
