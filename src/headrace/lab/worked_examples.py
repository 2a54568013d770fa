"""The worked examples of the scheduling rules, played on the real scheduler and kept as recordings.

``python -m headrace.lab.worked_examples`` writes them again; a test holds the files equal to what this
makes. Each example reaches its starting state by real steps. The numbers are contracts: they are never
adjusted to the code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace._core import Scheduler, StepCost
from headrace.contract.plan import Role, StepKind
from headrace.engine.engine import add_sequence
from headrace.obs.events import Added
from headrace.obs.recorder import Recorder

RECORDINGS = Path(__file__).parent / "recordings"

_SECONDS_PER_CALL = 0.001


class Script:
    """A scheduler and a recorder side by side. Sequences go by one-letter names; every call takes 1 ms."""

    def __init__(self, path: Path, title: str, names: str, **settings: Any) -> None:
        self._now = 0.0
        self._ids = {name: i for i, name in enumerate(names, start=1)}
        self.core = Scheduler(**settings)
        self.recorder = Recorder.open(
            path,
            settings,
            title=title,
            names={i: name for name, i in self._ids.items()},
            clock=lambda: self._now,
            wall_time=0.0,
        )

    def _pass_time(self) -> None:
        self._now += _SECONDS_PER_CALL

    def add(self, name: str, prompt: Sequence[int], max_tokens: int = 16) -> None:
        """Adds a sequence whose every sampled token is wanted (no end-of-sequence ids)."""
        self._pass_time()
        event = Added(
            t=0.0,
            seq_id=self._ids[name],
            prompt=list(prompt),
            max_tokens=max_tokens,
            min_tokens=0,
            eos_ids=[],
            stop_ids=[],
            ignore_eos=False,
            reads_cache=True,
            priority=0,
            arrival=0.0,
        )
        fields = msgspec.structs.asdict(event)
        del fields["t"], fields["seq_id"]
        add_sequence(self.core, event.seq_id, fields)
        self.recorder.added(event.seq_id, fields)

    def finish(self, *names: str) -> None:
        """Ends sequences from outside, in this order."""
        for name in names:
            self._pass_time()
            self.core.finish(self._ids[name])
            self.recorder.finished(self._ids[name], "abort")

    def draft(self, name: str, tokens: Sequence[int]) -> None:
        self._pass_time()
        self.core.set_drafts(self._ids[name], list(tokens))
        self.recorder.drafted(self._ids[name], list(tokens))

    def judge(self, name: str, confidences: Sequence[float]) -> None:
        self._pass_time()
        self.core.set_confidences(self._ids[name], list(confidences))
        self.recorder.judged(self._ids[name], list(confidences))

    def price(self, cost: StepCost) -> None:
        self._pass_time()
        self.core.set_cost(cost)
        self.recorder.priced(cost)

    def step(self, emitted: Mapping[str, Sequence[int]] | None = None, kind: StepKind = StepKind.MIXED) -> None:
        """Plans and commits one step. Each sampling slice emits ``emitted[name]``, or else one token (7).

        Of a slice with drafts, one row stands per token emitted: the others are rejected.
        """
        self._pass_time()
        plan = self.core.plan(int(kind))
        self.recorder.planned(plan)
        self._pass_time()
        given = {self._ids[name]: list(tokens) for name, tokens in (emitted or {}).items()}
        valid, offsets, tokens = [], [0], []
        for i, seq_id in enumerate(plan.seq_ids.tolist()):
            row = given.get(seq_id, [7]) if plan.samples[i] else []
            rejected = int(plan.num_drafts[i]) - max(len(row) - 1, 0)
            valid.append(int(plan.num_scheduled[i]) - rejected)
            tokens += row
            offsets.append(len(tokens))
        rows = [np.array(row, dtype=np.int32) for row in (valid, offsets, tokens)]
        self.core.commit(plan.step, *rows)
        self.recorder.committed(plan.step, *rows)


def _prompt(name: str, length: int) -> list[int]:
    """A prompt that shares no block with another name's."""
    return [1000 * ord(name) + i for i in range(length)]


def v_e1(path: Path) -> None:
    """(a) is step 2, (b) step 3. D only fills the first step, so that B's first slice is 4 tokens long."""
    script = Script(
        path,
        "V-E1 (a) step 2: one budget of 8; (b) step 3: A verifies 3 drafts",
        "ABCD",
        num_blocks=33,
        block_size=16,
        token_budget=8,
        input_budget=8,
        max_model_len=128,
    )
    script.add("D", _prompt("D", 3), max_tokens=1)
    script.add("A", _prompt("A", 9))
    script.step()  # D 3, A 5 of 9
    script.add("B", _prompt("B", 10))
    script.step()  # A 4, B 4 of 10
    script.add("C", _prompt("C", 5))
    script.step()  # (a): A 1, B 6, C 1
    script.draft("A", [21, 22, 23])
    script.step({"A": [21, 9]})  # (b): one draft accepted, one token sampled
    script.recorder.close()


def v_e1_budgets(path: Path) -> None:
    script = Script(
        path,
        "V-E1 (c): a token budget of 8, an input budget of 12 that also pays 2 draft slots per sequence",
        "XY",
        num_blocks=33,
        block_size=16,
        token_budget=8,
        input_budget=12,
        draft_slots=2,
        max_model_len=128,
    )
    script.add("X", _prompt("X", 4))
    script.add("Y", _prompt("Y", 4))
    script.step()
    script.recorder.close()


def v_e2(path: Path) -> None:
    script = Script(
        path,
        "V-E2: both blocks of the prompt are cached; one token must be computed, so one block is taken",
        "XY",
        num_blocks=17,
        block_size=16,
        token_budget=64,
        max_model_len=128,
    )
    script.add("X", _prompt("P", 32), max_tokens=1)
    script.step()
    script.add("Y", _prompt("P", 32), max_tokens=1)
    script.step()
    script.recorder.close()


def v_e2_pool(path: Path) -> None:
    """A pool of five. Blocks 1 and 2 stay with H; before step 1 the free queue is [5, 3, 4]."""
    script = Script(
        path,
        "V-E2, pool trace: hit on block 3, free it, hand out blocks 5 and 4; block 3 can still be hit",
        "HPQRST",
        num_blocks=6,
        block_size=16,
        token_budget=128,
        max_model_len=128,
    )
    script.add("H", _prompt("H", 17))
    script.add("P", _prompt("P", 16))
    script.add("Q", _prompt("Q", 16))
    script.step()  # H gets 1 and 2, P gets 3, Q gets 4
    script.finish("P", "Q")
    script.add("R", [*_prompt("P", 16), 5])
    script.step()  # R hits 3; its 17th token needs a block: 5
    script.finish("R")
    script.add("S", _prompt("S", 17))
    script.step()  # S gets 5 and 4: what 4 held is forgotten
    script.finish("S")
    script.add("T", [*_prompt("P", 16), 5])
    script.step()  # T hits 3
    script.recorder.close()


def v_e3(path: Path) -> None:
    """The example is step 3. The other sequences only put the free blocks into the order it asks for."""
    script = Script(
        path,
        "V-E3 (step 3): packing slices of 2, 1 and 3 tokens; block tables [7, 2], [1, 3, 5], [8]",
        "ABCGEVWXYZ",
        num_blocks=9,
        block_size=4,
        token_budget=32,
        long_prefill_threshold=4,
        max_model_len=32,
        full_sequence_must_fit=False,
    )
    shared = _prompt("B", 10)
    script.add("G", shared[:8], max_tokens=1)
    script.add("E", _prompt("E", 1))
    script.step()  # G gets 1, E gets 2
    for name in "VWXYZ":
        script.add(name, _prompt(name, 1))
    script.step()  # G gets 3 and ends: 1 and 3 stay cached. V to Z get 4 to 8
    script.finish("V", "X", "Z", "E", "W", "Y")  # unnamed blocks go to the head: next are 7, 5, 2, 8
    script.add("A", _prompt("A", 6))
    script.add("B", shared)
    script.step()  # A 4 of 6 in 7; B hits 1 and 3, computes 2 in 5
    script.add("C", _prompt("C", 3))
    script.step()
    script.recorder.close()


def twins(path: Path) -> None:
    script = Script(
        path,
        "Twins: two equal prompts of 40 in one step; the second shares two blocks of the first",
        "XY",
        num_blocks=17,
        block_size=16,
        token_budget=64,
        max_model_len=128,
    )
    script.add("X", _prompt("T", 40))
    script.add("Y", _prompt("T", 40))
    script.step()
    script.step()
    script.recorder.close()


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
    script.add("A", _prompt("A", 6))
    script.add("B", _prompt("B", 3))
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
    script.add("A", _prompt("A", 6))
    script.step(kind=StepKind.PREFILL)
    script.step(kind=StepKind.DECODE)
    script.step(kind=StepKind.DECODE)
    script.add("B", _prompt("B", 5))
    script.step(kind=StepKind.PREFILL)
    for _ in range(3):
        script.step(kind=StepKind.DECODE)
    script.add("C", _prompt("C", 11))
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
    script.add("A", _prompt("A", 6))
    script.add("B", _prompt("B", 3))
    script.step(kind=StepKind.PREFILL)
    for name, confidences in {"A": [0.9, 0.5], "B": [0.8, 0.25]}.items():
        script.draft(name, [21, 22])
        script.judge(name, confidences)
    script.step({"A": [21, 9], "B": [9]}, kind=StepKind.DECODE)
    script.recorder.close()


EXAMPLES: Mapping[str, Callable[[Path], None]] = {
    "v-e1": v_e1,
    "v-e1-budgets": v_e1_budgets,
    "v-e2": v_e2,
    "v-e2-pool": v_e2_pool,
    "v-e3": v_e3,
    "twins": twins,
    "d-e1": d_e1,
    "d-e3": d_e3,
    "decode-order": decode_order,
}


def write_all(folder: Path) -> None:
    """Writes every example as ``<name>.jsonl``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in EXAMPLES.items():
        path = folder / f"{name}.jsonl"
        path.unlink(missing_ok=True)
        make(path)


if __name__ == "__main__":
    write_all(RECORDINGS)
