"""One prompt through the engine while its text is shown, stoppable between any two steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.contract.errors import WorkerError

from .interrupts import Interrupts

if TYPE_CHECKING:
    from headrace.api.llm import LLM
    from headrace.api.output import RequestOutput
    from headrace.api.prompts import Prepared

Show = Callable[[str], None]


@dataclass(slots=True)
class Streamed:
    """What came out, and when: seconds since the prompt was handed in."""

    output: RequestOutput
    first_token_s: float | None = None
    total_s: float = 0.0
    exit_code: int = 0

    @property
    def tokens_per_s(self) -> float | None:
        """Rate after the first token; None when there was no second one."""
        later = len(self.output.outputs[0].token_ids) - 1
        if self.first_token_s is None or later < 1 or self.total_s <= self.first_token_s:
            return None
        return later / (self.total_s - self.first_token_s)

    def timing(self, load_s: float) -> dict[str, Any]:
        return {"load_s": load_s, "first_token_s": self.first_token_s, "tokens_per_s": self.tokens_per_s}


def stream(llm: LLM, prepared: Prepared, show: Show) -> Streamed:
    """Runs one prompt to its end or to an interrupt. Raises WorkerError when the engine fails on it."""
    from headrace.api.output import CompletionOutput, RequestOutput

    start = time.monotonic()
    nothing = RequestOutput(prepared.request_id, prepared.prompt, prepared.token_ids, [CompletionOutput(0)])
    streamed = Streamed(nothing)
    printer = _Printer(show, as_text=llm.tokenizer is not None)
    turns = llm.feed([prepared])
    with Interrupts() as interrupts:
        for news in turns:
            for output in news:
                streamed.output = output
                if streamed.first_token_s is None and output.outputs[0].token_ids:
                    streamed.first_token_s = time.monotonic() - start
                printer.update(output)
            if interrupts.asked:
                streamed.exit_code = interrupts.exit_code
                break
        streamed.total_s = time.monotonic() - start
        turns.close()  # type: ignore[attr-defined]  # aborts what is open, before the interrupt handler goes
    if (error := streamed.output.outputs[0].error) is not None:
        raise WorkerError(error)
    return streamed


class _Printer:
    """Shows what is new; ids where the model has no tokenizer."""

    def __init__(self, show: Show, as_text: bool) -> None:
        self._show = show
        self._as_text = as_text
        self._shown = 0

    def update(self, output: RequestOutput) -> None:
        choice = output.outputs[0]
        if self._as_text:
            if new := choice.text[self._shown :]:
                self._show(new)
            self._shown = len(choice.text)
            return
        for token in choice.token_ids[self._shown :]:
            self._show(f"{' ' if self._shown else ''}{token}")
            self._shown += 1
