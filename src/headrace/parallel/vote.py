"""Votes: how a group of ranks agrees on what the next step is. Each ballot is one MIN-reduction of a few flags.

Pure functions over ballots; who carries them is a Collective. A minimum answers both questions: "all?" of a flag, and
"any?" of its opposite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.contract.errors import GroupBroken

_NO_BUDGET = 2**62  # greater than any


@dataclass(frozen=True, slots=True)
class Ballot:
    """One rank's flags before a step."""

    wants_prompt: bool
    decodes: bool  # it has sequences that decode, or are about to
    decode_step: int  # must be equal everywhere: a check that the group is in step
    time_budget_ns: int = 0  # what a prompt step may take; 0 = no limit

    def encode(self) -> list[int]:
        return [
            self.wants_prompt,
            not self.wants_prompt,
            not self.decodes,
            self.decode_step,
            -self.decode_step,
            self.time_budget_ns or _NO_BUDGET,
        ]


@dataclass(frozen=True, slots=True)
class Tally:
    """The group's flags."""

    all_want_prompt: bool
    any_wants_prompt: bool
    any_decodes: bool
    time_budget_ns: int

    @staticmethod
    def decode(least: Sequence[int]) -> Tally:
        """Raises GroupBroken when the ranks count different decode steps: one of them missed a vote."""
        all_want, none_wants, none_decodes, first, last, budget = least
        if first != -last:
            raise GroupBroken(f"ranks are out of step: {first} to {-last} decode steps since the last prompt step")
        return Tally(bool(all_want), not none_wants, not none_decodes, 0 if budget == _NO_BUDGET else budget)


def encode_any(flag: bool) -> list[int]:
    """A question of one flag: does any rank say yes?"""
    return [not flag]


def decode_any(least: Sequence[int]) -> bool:
    return not least[0]
