"""LLM: a model in this process (or a group of engines behind it), prompts in, finished outputs out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from headrace.config import EngineConfig, resolve
from headrace.contract.errors import ConfigError, EngineBusy, EngineDead, InvalidRequest
from headrace.contract.picture import Eyes
from headrace.contract.request import SamplingParams
from headrace.contract.stats import EngineStats
from headrace.engine.turns import Turns
from headrace.worker.memory import PoolSize

from .connect import connect
from .conversations import chat_prompt
from .determinism import settle
from .feed import Feed
from .launch import Progress, launch
from .output import RequestOutput
from .pictures import most_rows
from .prompts import Prepared, Preparer, Prompt

Messages = Sequence[Mapping[str, Any]]


class LLM:
    """Loads a model and generates. Settings are those of ``headrace.config``, by name, or a whole ``config``.

    ``deterministic=True``: the same request, the same bytes, whatever runs beside it (docs/determinism.md); ``notes``
    says what that changed.
    Not for concurrent use: one call at a time (``AsyncLLM`` serves many). Close it, or use it in a ``with``.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        dtype: str | None = None,
        deterministic: bool | None = None,
        config: EngineConfig | None = None,
        progress: Progress | None = None,
        **settings: Any,
    ) -> None:
        if config is None:
            config = resolve({"model": model, "dtype": dtype, "deterministic": deterministic, **settings})
        elif model is not None or dtype is not None or deterministic is not None or settings:
            raise ConfigError("config", "holds every setting; give it alone")
        self.engine: Any  # an Engine, or Turns over the client of several
        several = config.group.data_parallel_size > 1 or config.scheduler.discipline == "split"
        if several or config.runtime.encoder_process:
            self._connect(config, progress)
        else:
            self._launch(config, progress)
        self._preparer = Preparer(
            self.tokenizer,
            self.vocab_size,
            self.max_model_len,
            deterministic=config.runtime.deterministic,
            eyes=self.eyes,
            skips_rows=config.model.prefill_keep is not None,
            most_picture_rows=most_rows(config),
        )
        self._closed = False
        self._busy = threading.Lock()

    def _launch(self, config: EngineConfig, progress: Progress | None) -> None:
        launched = launch(config, progress=progress)
        self.engine = launched.engine
        self.tokenizer = launched.tokenizer
        self.max_model_len = launched.max_model_len
        self.vocab_size = launched.vocab_size
        self.pool = launched.pool
        self.model_name = launched.model_name
        self.notes = launched.notes
        self.eyes = launched.eyes

    def _connect(self, config: EngineConfig, progress: Progress | None) -> None:
        connected = connect(config, own_process=False, progress=progress)
        facts = connected.facts
        self.engine = Turns(connected.client, config.scheduler.max_waiting)
        self.tokenizer = connected.tokenizer
        self.max_model_len = facts["max_model_len"]
        self.vocab_size = facts["vocab_size"]
        self.pool = PoolSize(**facts["pool"])
        self.model_name = facts["model_name"]
        self.notes = settle(config).words  # each engine does it by itself, and alike
        self.eyes = None if facts.get("eyes") is None else Eyes(**facts["eyes"])

    @property
    def stats(self) -> EngineStats:
        """The engine's numbers after its latest turn: queues, blocks, steps, and what overlap gains."""
        stats: EngineStats = self.engine.stats
        return stats

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        on_output: Callable[[RequestOutput], None] | None = None,
    ) -> list[RequestOutput]:
        """Continues each prompt. Outputs come in the order of the prompts; ``on_output`` sees each as it finishes.

        Every prompt is checked before any work: InvalidRequest names the field at fault.
        """
        many: Sequence[Any] = prompts if _is_batch(prompts) else [prompts]  # type: ignore[assignment]
        params = _per_prompt(sampling_params, len(many))
        prepared = [self._preparer.prepare(p, s) for p, s in zip(many, params)]
        return self._run(prepared, on_output)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | None = None,
        *,
        on_output: Callable[[RequestOutput], None] | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation, or each of several, through the model's chat template. Contents may hold pictures
        (``conversations``)."""
        given: Any = messages
        many = isinstance(given, list | tuple) and bool(given) and all(isinstance(one, list | tuple) for one in given)
        if not many:
            return self.generate([self.chat_prompt(given)], sampling_params, on_output=on_output)
        prompts = [self.chat_prompt(one, f"messages[{k}]") for k, one in enumerate(given)]
        return self.generate(prompts, sampling_params, on_output=on_output)

    def chat_prompt(self, messages: Messages, where: str = "messages") -> dict[str, Any]:
        """A conversation as a prompt, for ``generate`` or ``prepare``. Raises InvalidRequest naming the part of
        ``where`` that is at fault."""
        if self.tokenizer is None:
            raise InvalidRequest("messages", "this model has no tokenizer")
        return chat_prompt(self.tokenizer, self.eyes, messages, where=where)

    def encode_chat(self, messages: Messages) -> list[int]:
        """Token ids of a conversation, ending where the answer begins; one for each picture."""
        ids: list[int] = self.chat_prompt(messages)["prompt_token_ids"]
        return ids

    def prepare(self, prompt: Prompt, sampling: SamplingParams | None = None) -> Prepared:
        """A prompt checked and tokenized, without running it."""
        return self._preparer.prepare(prompt, sampling)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """Continues one prompt: the same output again and again as it grows, at last with ``finished`` set.

        Leaving the loop early aborts the request.
        """
        for news in self.feed([self.prepare(prompt, sampling_params)]):
            yield from news

    def feed(self, prepared: Iterable[Prepared], *, window: int | None = None) -> Iterator[list[RequestOutput]]:
        """Prompts of ``prepare``, pulled as the engine has room: per turn of the engine, the outputs that grew.

        ``window`` bounds how many sequences are open, so that a source of any length needs bounded memory. A turn
        without news gives an empty list: the place to look whether to go on. Leaving the loop early aborts. Raises
        InvalidRequest for one that is open already.
        """
        if self._closed:
            raise EngineDead("this LLM was closed")
        return self._one_at_a_time(Feed(self.engine, self.tokenizer, iter(prepared), window))

    def _one_at_a_time(self, feed: Feed) -> Iterator[list[RequestOutput]]:
        if not self._busy.acquire(blocking=False):
            raise EngineBusy("this LLM is generating already: let that end first, or use AsyncLLM for many at once")
        try:
            yield from feed.turns()
        finally:
            self._busy.release()

    def _run(self, prepared: list[Prepared], on_output: Callable[[RequestOutput], None] | None) -> list[RequestOutput]:
        finished: dict[str, RequestOutput] = {}
        for news in self.feed(prepared):
            for output in news:
                if not output.finished:
                    continue
                finished[output.request_id] = output
                if on_output is not None:
                    on_output(output)
        return [finished[p.request_id] for p in prepared]

    def close(self) -> None:
        """Frees the engine. Further calls raise EngineDead."""
        if not self._closed:
            self._closed = True
            self.engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _is_batch(prompts: Any) -> bool:
    """A list of prompts, rather than one prompt that is a list of ids."""
    if isinstance(prompts, str | Mapping) or not isinstance(prompts, Sequence):
        return False
    return not prompts or not hasattr(prompts[0], "__index__")


def _per_prompt(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> Sequence[SamplingParams | None]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    if isinstance(params, str | bytes | Mapping) or not isinstance(params, Sequence):
        raise InvalidRequest("sampling_params", f"must be SamplingParams or a list, got {type(params).__name__}")
    if len(params) != count:
        raise InvalidRequest("sampling_params", f"{len(params)} given for {count} prompts")
    return params
