"""A grammar for tests that needs no compiler and no text: what may follow depends on the last id and on the length."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.contract.request import StructuredOutputs
from headrace.grammar.backend import Vocabulary
from headrace.grammar.compiler import GrammarPool
from headrace.grammar.mask import WordArray

END = 2  # allowed from ``LEAST`` ids on; nothing may follow it
LEAST = 6
ANYTHING = StructuredOutputs(regex=".*")  # what it asks for does not matter here


class Chain:
    """A matcher: behind id t come ``width`` ids that t alone decides, and END once it is long enough."""

    def __init__(self, vocab_size: int, width: int) -> None:
        self.ids: list[int] = []
        self._vocab_size, self._width = vocab_size, width

    @property
    def ended(self) -> bool:
        return self.ids[-1:] == [END]

    def _may_follow(self) -> set[int]:
        last = self.ids[-1] if self.ids else 7
        some = {(5 * last + 3 * k + 1) % self._vocab_size for k in range(self._width)} - {END}
        return some | {END} if len(self.ids) >= LEAST else some

    def accept(self, token: int) -> bool:
        assert not self.ended
        if token not in self._may_follow():
            return False
        self.ids.append(token)
        return True

    def rollback(self, count: int) -> None:
        assert 0 < count <= len(self.ids)
        del self.ids[-count:]

    def fill(self, words: WordArray) -> None:
        assert not self.ended
        bits = np.zeros(len(words) * 32, dtype=np.uint8)
        bits[sorted(self._may_follow())] = 1
        words[:] = np.packbits(bits, bitorder="little").view(np.int32)


def chains(vocab_size: int = 61, width: int = 9) -> GrammarPool:
    """A pool whose every grammar is a ``Chain``."""

    class Backend:
        def __init__(self, vocabulary: Vocabulary) -> None: ...

        def compile(self, wanted: StructuredOutputs) -> Any:
            return wanted

        def num_bytes(self, compiled: Any) -> int:  # noqa: ARG002  # likewise
            return 0

        def matcher(self, compiled: Any) -> Any:  # noqa: ARG002  # the backend's shape
            return Chain(vocab_size, width)

    return GrammarPool(lambda: Vocabulary([], (END,)), open_backend=Backend)
