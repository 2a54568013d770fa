"""AsyncLLM: many requests at once, each a stream. The engine runs on a thread, in a process of its own, or as a group.

With a process of its own for the engine, this one never imports torch: it starts fast and stays small.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec

from headrace.config import EngineConfig, resolve
from headrace.contract.errors import ConfigError, InvalidRequest, WorkerError, refusal
from headrace.contract.picture import Eyes
from headrace.contract.request import SamplingParams
from headrace.contract.result import TokenDelta
from headrace.contract.stats import StepCost
from headrace.engine.client import EngineClient
from headrace.engine.starting import Flag

from .assembly import Assembly
from .connect import connect
from .conversations import chat_prompt
from .output import RequestOutput
from .prompts import Prepared, Preparer, Prompt
from .text.tokenizer import Tokenizer


class AsyncLLM:
    """``async for output in llm.generate(prompt, params)``: each output is the state so far, the last is finished.

    Leaving the loop early, or cancelling it, aborts the request in the engine. ``give_up``: an event that, once set,
    ends the wait for engines in other processes (EngineDead).
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        own_process: bool = False,
        config: EngineConfig | None = None,
        give_up: Flag | None = None,
        **settings: Any,
    ) -> None:
        if config is None:
            config = resolve({"model": model, **settings})
        elif model is not None or settings:
            raise ConfigError("config", "holds every setting; give it alone")
        connected = connect(config, own_process=own_process, give_up=give_up)
        self._connect_to(connected.client, connected.tokenizer, connected.facts)

    @classmethod
    def over(cls, client: EngineClient, tokenizer: Tokenizer | None, facts: dict[str, Any]) -> AsyncLLM:
        """Over an engine that runs already. ``facts``: ``vocab_size``, ``max_model_len``; ``deterministic``,
        ``step_cost``, ``eyes``, ``most_picture_rows`` and ``skips_rows`` where they are known."""
        llm = cls.__new__(cls)
        llm._connect_to(client, tokenizer, facts)
        return llm

    def _connect_to(self, client: EngineClient, tokenizer: Tokenizer | None, facts: dict[str, Any]) -> None:
        self.client = client
        self.tokenizer = tokenizer
        self.vocab_size: int = facts["vocab_size"]
        self.max_model_len: int = facts["max_model_len"]
        cost = facts.get("step_cost")
        self.step_cost = None if cost is None else msgspec.convert(cost, StepCost)
        deterministic = bool(facts.get("deterministic"))
        self.eyes = None if facts.get("eyes") is None else Eyes(**facts["eyes"])
        self._preparer = Preparer(
            tokenizer,
            self.vocab_size,
            self.max_model_len,
            deterministic=deterministic,
            eyes=self.eyes,
            skips_rows=bool(facts.get("skips_rows")),
            most_picture_rows=facts.get("most_picture_rows"),
        )
        self._live: set[str] = set()

    def prepare(
        self, prompt: Prompt, sampling: SamplingParams | None = None, request_id: str | None = None
    ) -> Prepared:
        """A prompt checked and tokenized, nothing queued; safe on any thread. Raises InvalidRequest."""
        return self._preparer.prepare(prompt, sampling, request_id)

    async def generate(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, request_id: str | None = None
    ) -> AsyncIterator[RequestOutput]:
        """Raises InvalidRequest before any work, WorkerError when the engine fails on the request."""
        prepared = self._preparer.prepare(prompt, sampling_params, request_id)
        if prepared.request_id in self._live:
            raise InvalidRequest("request_id", f"{prepared.request_id} is in use")
        self._live.add(prepared.request_id)
        loop = asyncio.get_running_loop()
        arrivals: asyncio.Queue[TokenDelta] = asyncio.Queue()

        def sink(delta: TokenDelta) -> None:
            loop.call_soon_threadsafe(arrivals.put_nowait, delta)

        assembly = Assembly(prepared, self.tokenizer)
        try:
            for request in prepared.requests:
                self.client.submit(request, sink)
            while not assembly.output.finished:
                self._take(assembly, await arrivals.get())
                while not arrivals.empty():
                    self._take(assembly, arrivals.get_nowait())
                yield copy.deepcopy(assembly.output)
        finally:
            self._live.discard(prepared.request_id)
            if not assembly.output.finished:
                self._abort(prepared)

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], sampling_params: SamplingParams | None = None
    ) -> AsyncIterator[RequestOutput]:
        """Answers a conversation through the model's chat template; as ``generate``."""
        if self.tokenizer is None:
            raise InvalidRequest("messages", "this model has no tokenizer")
        prompt = chat_prompt(self.tokenizer, self.eyes, messages, self.max_model_len)
        async for output in self.generate(prompt, sampling_params):
            yield output

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self.close)

    def _take(self, assembly: Assembly, delta: TokenDelta) -> None:
        if assembly.push(delta):
            self.client.stop(delta.request_id)
        if delta.error_field is not None:
            raise refusal(delta.error_field, delta.error or "")
        if delta.finish_reason == "error":
            raise WorkerError(delta.error or "the engine failed")

    def _abort(self, prepared: Prepared) -> None:
        for request in prepared.requests:
            self.client.abort(request.request_id)

    def close(self) -> None:
        """Ends open requests and the engine."""
        self.client.close()
