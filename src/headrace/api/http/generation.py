"""Generation: the prompts of one HTTP request on their way through the engine, as news of their choices."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence

from headrace.api.async_llm import AsyncLLM
from headrace.contract.errors import EngineDead, WorkerError, refusal
from headrace.contract.request import Request
from headrace.contract.result import TokenDelta
from headrace.obs.metrics import Metrics

from ..choice import Choice
from ..output import CompletionOutput, Logprob, RequestOutput, logprob_dict
from ..prompts import Prepared
from ..protocol.news import News, Usage
from ..text.answer_forms import Mark
from .mailbox import Mailbox

ENDS = ("stop", "length")


class Generation:
    """Submitted by ``start``, or in parts by ``send``; then ``news`` until ``finished``; ``close`` always, it aborts
    what still runs.

    Raises from ``news``: WorkerError when the engine failed on it, EngineDead when the engine is gone. Then all its
    choices are over.
    """

    def __init__(
        self,
        llm: AsyncLLM,
        prepared: Sequence[Prepared],
        metrics: Metrics,
        marks: Mapping[int, Mark] | None = None,
    ) -> None:
        self._llm = llm
        self._prepared = prepared
        self._unsent = deque(request for one in prepared for request in one.requests)
        self._marks = marks
        self._metrics = metrics
        self._started_s = time.monotonic()
        self._mailbox = Mailbox()
        self._choices: dict[str, tuple[int, Choice, RequestOutput]] = {}
        self._open: set[str] = set()
        self._first_s: dict[str, float] = {}
        self._last_s: dict[str, float] = {}
        self._num_unended = {one.request_id: len(one.requests) for one in prepared}
        self.keeps_rows = True  # logprobs that were told; a stream has no use for them
        self._begun = False
        self._num_unread = 0
        self._failure: Exception | None = None  # raised once what came before it has been told
        self._ended: Exception | None = None  # raised at once
        self.outputs = [self._open_output(one) for one in prepared]

    def _open_output(self, prepared: Prepared) -> RequestOutput:
        output = RequestOutput(prepared.request_id, prepared.prompt, prepared.token_ids, [])
        for k, request in enumerate(prepared.requests):
            choice = Choice(k, request.sampling, self._llm.tokenizer, self._marks)
            self._choices[request.request_id] = len(self._choices), choice, output
            output.outputs.append(choice.output)
        return output

    def start(self) -> None:
        """Hands every sequence to the engine. Raises EngineDead, and then none is left behind."""
        try:
            self.send(len(self._unsent))
        except Exception:
            self.close()
            raise

    def send(self, count: int) -> None:
        """Hands the next ``count`` sequences to the engine. Raises EngineDead, QueueFull."""
        if not self._begun:
            self._begin()
        for _ in range(count):
            self._llm.client.submit(self.placed(self._unsent[0]), self._mailbox.deliver)
            self._unsent.popleft()

    def _begin(self) -> None:
        self._begun = True
        self._open.update(self._choices)
        for prepared in self._prepared:
            self._metrics.add("prompt_tokens", len(prepared.token_ids))
            self._metrics.observe("request_prompt_tokens", len(prepared.token_ids))
            self._metrics.observe("request_choices", len(prepared.requests))
            if (most := prepared.requests[0].sampling.max_tokens) is not None:
                self._metrics.observe("request_max_tokens", most)

    def placed(self, request: Request) -> Request:
        """The request with its place in the engine's queue, for whoever decides on that."""
        return request

    @property
    def constrained(self) -> bool:
        """Something may still turn out to be wrong with the request itself."""
        return any(one.sampling.structured_outputs is not None for one in self._prepared)

    @property
    def finished(self) -> bool:
        return self._begun and not self._open and self._failure is None

    async def news(self, timeout_s: float) -> list[News]:
        """One News per choice that has any; empty after ``timeout_s`` of silence."""
        self._check()
        deltas = await self._mailbox.take(timeout_s)
        if self._ended is not None:
            raise self._ended
        return self._digest(deltas)

    def _check(self) -> None:
        if (failure := self.failure) is not None:
            raise failure

    @property
    def failure(self) -> Exception | None:
        """Why it does not go on to its own end; None as long as it does."""
        return self._ended or self._failure

    def fail(self, error: Exception) -> None:
        """Ends it from outside: whoever waits for news gets this instead."""
        if not self.finished:
            self._ended = error
            self._mailbox.wake()

    def _digest(self, deltas: list[TokenDelta]) -> list[News]:
        pieces: dict[str, list[str]] = {}
        starts: dict[str, int] = {}
        for delta in deltas:
            name = delta.request_id
            if name not in self._open:
                continue  # the engine's echo of a choice whose text was complete before
            choice = self._choices[name][1]
            starts.setdefault(name, len(choice.output.token_ids))
            pieces.setdefault(name, []).append(choice.push(delta))
            self._after(name, choice, delta)
        return [self._news(name, starts[name], "".join(texts)) for name, texts in pieces.items()]

    def _after(self, name: str, choice: Choice, delta: TokenDelta) -> None:
        """Bookkeeping of one delta: times, stop strings, ends."""
        self._time(name, len(delta.token_ids))
        if choice.wants_stop:
            choice.wants_stop = False
            self._llm.client.stop(name)
        if choice.finished:
            self._open.discard(name)
            self.sequence_ended(self._choices[name][0])
            self._count_end(name)
        if delta.error_field is not None:
            self._failure = refusal(delta.error_field, delta.error or "")
        elif choice.output.finish_reason == "error":
            self._failure = WorkerError(delta.error or "the engine failed")
        if choice.output.finish_reason == "abort":
            self._failure = EngineDead("the engine was closed")

    def _time(self, name: str, num_tokens: int) -> None:
        if not num_tokens:
            return
        self.tokens_came(self._choices[name][0], num_tokens)
        now = time.monotonic()
        if (last := self._last_s.get(name)) is None:
            self._first_s[name] = now
            self._metrics.observe("time_to_first_token_seconds", now - self._started_s)
        else:
            self._metrics.observe("inter_token_latency_seconds", now - last)
        self._last_s[name] = now
        self._metrics.add("generation_tokens", num_tokens)

    def tokens_came(self, index: int, num_tokens: int) -> None:
        """For whoever counts along; ``index`` of the choice among all."""

    def sequence_ended(self, index: int) -> None:
        """Likewise."""

    def _count_end(self, name: str) -> None:
        _, choice, output = self._choices[name]
        observe, count = self._metrics.observe, len(choice.output.token_ids)
        self._metrics.add("requests", 1, choice.output.finish_reason or "abort")
        observe("request_seconds", time.monotonic() - self._started_s)
        observe("request_generation_tokens", count)
        if name in self._first_s:
            decode_s = self._last_s[name] - self._first_s[name]
            observe("request_decode_seconds", decode_s)
            observe("request_time_per_output_token_seconds", decode_s / (count - 1) if count > 1 else 0.0)
        self._num_unended[output.request_id] -= 1
        if not self._num_unended[output.request_id]:
            observe("request_most_generation_tokens", max(len(one.token_ids) for one in output.outputs))

    def _news(self, name: str, start: int, text: str) -> News:
        index, choice, output = self._choices[name]
        _share_prompt_facts(choice, output)
        out = choice.output
        logprobs = self._new_rows(out, start)
        finish = out.finish_reason if out.finish_reason in ENDS else None  # a failure is told as an error, not an end
        return News(index, text, out.token_ids[start:], logprobs, finish, out.stop_reason, choice.take_pieces())

    def _new_rows(self, out: CompletionOutput, start: int) -> list[dict[int, Logprob]] | None:
        """The logprobs of the tokens from ``start`` on."""
        if out.logprobs is None or self.keeps_rows:
            return None if out.logprobs is None else out.logprobs[start:]
        told, out.logprobs = out.logprobs, []
        return told

    @property
    def usage(self) -> Usage:
        return Usage(
            sum(len(o.prompt_token_ids) for o in self.outputs),
            sum(len(c.token_ids) for o in self.outputs for c in o.outputs) + self._num_unread,
            sum(o.num_cached_tokens for o in self.outputs),
        )

    def _count_unread(self) -> None:
        """Tokens that were made and never told, as when a client takes nothing more: they were work all the same."""
        for delta in self._mailbox.drain():
            if delta.request_id in self._open and delta.token_ids:
                self._num_unread += len(delta.token_ids)
                self._metrics.add("generation_tokens", len(delta.token_ids))
                self.tokens_came(self._choices[delta.request_id][0], len(delta.token_ids))

    def close(self) -> None:
        """Aborts in the engine what has not ended. Safe to call twice."""
        self._count_unread()
        unsent = {request.request_id for request in self._unsent}
        for name in self._open:
            if name not in unsent:
                self._llm.client.abort(name)
            self._metrics.add("requests", 1, "abort")
        self._open.clear()


def _share_prompt_facts(choice: Choice, output: RequestOutput) -> None:
    """What the first delta says of the prompt belongs to the prompt's output."""
    if choice.output.index == 0:
        output.num_cached_tokens = choice.num_cached_tokens
    if choice.prompt_logprobs is not None and output.prompt_logprobs is None:
        output.prompt_logprobs = [
            None if entry is None else logprob_dict(entry, choice.texts(entry)) for entry in choice.prompt_logprobs
        ]
