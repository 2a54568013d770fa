"""A scripted scheduler with a recorder beside it: what the worked examples are played on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace._core import Scheduler, StepCost
from headrace.contract.plan import StepKind
from headrace.engine.admission import add_sequence
from headrace.obs.events import Added
from headrace.obs.recorder import Recorder

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


def prompt_of(name: str, length: int) -> list[int]:
    """A prompt that shares no block with another name's."""
    return [1000 * ord(name) + i for i in range(length)]
