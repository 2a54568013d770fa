"""Many ranks in one thread: each cadence's turn is advanced by hand, ballots are reduced here, steps return at once.

Ranks that stop asking while others still ask would deadlock real ones: that is an error here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from core_device import ids, next_token

from headrace._core import Scheduler
from headrace.contract.plan import Role
from headrace.engine.phase_voted import PhaseVoted


class Ends:
    """A collective that only knows its size: the group's ballots are carried by hand."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def least(self, values: Any) -> list[int]:
        del values
        raise AssertionError("a rank voted on its own")

    def close(self) -> None:
        pass


class Rank:
    """A NORMAL scheduler, its cadence, and the simplest device."""

    def __init__(self, rank: int, size: int, intervals: dict[str, int], **settings: Any) -> None:
        self.core = Scheduler(
            **{"num_blocks": 33, "block_size": 4, "max_model_len": 400, "token_budget": 16, "role": int(Role.NORMAL)}
            | settings
        )
        self.cadence = PhaseVoted(Ends(rank, size), **intervals)
        self.prompts: dict[int, list[int]] = {}
        self.outputs: dict[int, list[int]] = {}
        self.ignored: dict[int, int] = {}

    def add(self, seq_id: int, prompt: list[int], max_tokens: int) -> None:
        self.core.add(seq_id, ids(*prompt), max_tokens=max_tokens)
        self.prompts[seq_id], self.outputs[seq_id] = prompt, []

    def commit(self, plan: Any) -> None:
        if plan.step < 0:
            return
        offsets = np.concatenate([[0], np.cumsum(plan.samples)]).astype(np.int32)
        rows = zip(plan.seq_ids.tolist(), plan.num_computed + plan.num_scheduled, plan.samples.tolist())
        tokens = [next_token(self.prompts[seq_id], int(end)) for seq_id, end, samples in rows if samples]
        result = self.core.commit(plan.step, np.array(plan.num_scheduled), offsets, ids(*tokens))
        for i, seq_id in enumerate(result.seq_ids.tolist()):
            self.outputs[seq_id] += result.tokens[result.offsets[i] : result.offsets[i + 1]].tolist()

    def check_outputs(self) -> None:
        for seq_id, output in self.outputs.items():
            prompt = self.prompts[seq_id]
            assert output == [next_token(prompt, len(prompt) + i) for i in range(len(output))], seq_id


class Group:
    """``step`` runs one step on every rank and returns the plans; ``steps`` counts those in which anything ran."""

    def __init__(self, ranks: list[Rank]) -> None:
        self.ranks = ranks
        self.num_votes = 0

    def step(self) -> list[Any]:
        turns = [rank.cadence.turn(rank.core) for rank in self.ranks]
        plans: list[Any] = [None] * len(turns)
        answers: list[Any] = [None] * len(turns)
        while True:
            questions = [self._advance(i, turn, answers[i], plans) for i, turn in enumerate(turns)]
            asking = [question for question in questions if question is not None]
            if not asking:
                break
            assert len(asking) == len(turns), "some ranks vote, others do not: real ones would wait for ever"
            assert len({len(question) for question in asking}) == 1, "ranks vote on different questions"
            answers = [[min(column) for column in zip(*asking)]] * len(turns)
            self.num_votes += 1
        for rank, plan in zip(self.ranks, plans):
            rank.commit(plan)
            rank.ignored.update(rank.core.take_ignored())
        self._check(plans)
        return plans

    def _advance(self, i: int, turn: Any, answer: Any, plans: list[Any]) -> list[int] | None:
        try:
            return next(turn) if answer is None else turn.send(answer)
        except StopIteration as end:
            plans[i] = end.value
            return None

    def _check(self, plans: list[Any]) -> None:
        """All ranks run a step of one kind, or none runs any."""
        ran = [plan for plan in plans if plan.step >= 0]
        assert len(ran) in (0, len(plans))
        assert len({plan.kind for plan in plans}) == 1

    @property
    def num_unfinished(self) -> int:
        return sum(rank.core.num_unfinished for rank in self.ranks)
