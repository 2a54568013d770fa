"""What one rendering of a template may cost: characters and seconds. A template is code from outside."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

MAX_INTEGER_BITS = 4096


class BudgetError(Exception):
    """A rendering that went over its limits. Becomes an InvalidRequest at the edge of this room."""


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """``max_chars`` bounds each value and all output together; ``max_seconds`` the whole rendering."""

    max_chars: int = 8_000_000
    max_seconds: float = 5.0


class Budget:
    """The remaining allowance of one rendering. Every loop turn, call and operator comes by."""

    def __init__(self, limits: RenderLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._deadline = clock() + limits.max_seconds
        self._spent = 0

    def tick(self) -> None:
        if self._clock() > self._deadline:
            raise BudgetError(f"the template ran longer than {self.limits.max_seconds} s")

    def check_size(self, num_chars: int) -> None:
        """Refuses a value before it is built."""
        self.tick()
        if num_chars > self.limits.max_chars:
            raise BudgetError(f"the template made more than {self.limits.max_chars} characters")

    def spend(self, num_chars: int) -> None:
        """Counts characters that stay: written output and results of element-wise filters."""
        self._spent += num_chars
        self.check_size(self._spent)

    def weigh(self, value: Any) -> int:
        """Characters that ``value`` takes when written out; raises as soon as that is over the limit."""
        total = 0
        stack = [value]
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                total += len(item)
            elif isinstance(item, Mapping):
                total += 1
                stack += [part for pair in item.items() for part in pair]
            elif isinstance(item, (list, tuple, set, frozenset)):
                total += 1
                stack += item
            else:
                total += 1
            if total + len(stack) > self.limits.max_chars:
                self.check_size(total + len(stack))
        return total

    def binary(self, operator: str, left: Any, right: Any) -> None:
        """Refuses an operation whose result could be huge: repetition, doubling, towers of powers."""
        self.tick()
        if isinstance(left, int) and isinstance(right, int):
            self._integers(operator, left, right)
        elif operator == "*":
            self.check_size(max(_product(left, right), _product(right, left)))
        elif operator == "+":
            self.check_size(_length(left) + _length(right))
        elif operator == "%" and isinstance(left, str):
            raise BudgetError("the template formats with '%', which is not supported")

    def _integers(self, operator: str, left: int, right: int) -> None:
        bits = left.bit_length() * max(abs(right), 1) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > MAX_INTEGER_BITS:
            raise BudgetError("the template computes with oversized integers")

    def replacing(self, text: str, old: str, new: str) -> None:
        self.check_size(len(text) + text.count(old) * max(len(new) - len(old), 0))

    def joining(self, separator: str, items: Iterable[Any]) -> list[Any]:
        """The items as a list, once it is known that their join is small enough."""
        found = list(items)
        self.check_size(self.weigh(found) + len(separator) * len(found))
        return found


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, list, tuple)) else 0


def _product(value: Any, times: Any) -> int:
    return _length(value) * times if isinstance(times, int) else 0
