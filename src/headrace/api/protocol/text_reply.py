"""``/v1/completions``: the answer, whole or as chunks. Choice ``k`` of prompt ``i`` has index ``i * n + k``."""

from __future__ import annotations

from typing import Any

from headrace.api.output import CompletionOutput, RequestOutput

from ..text.tokenizer import Tokenizer
from .logprobs import TextLogprobs, prompt_logprobs
from .news import News, Usage
from .sse import DONE, data


class TextReply:
    """``echo``: the prompt comes first. ``scores_only``: and nothing after it. ``num_top`` None: no logprobs;
    ``prompt_top`` None: none of the prompt but with ``echo``. ``show_ids``: token ids beside the text."""

    def __init__(
        self,
        head: dict[str, Any],
        tokenizer: Tokenizer | None,
        *,
        num_top: int | None = None,
        prompt_top: int | None = None,
        echo: bool = False,
        scores_only: bool = False,
        wants_usage: bool = False,
        show_ids: bool = False,
    ) -> None:
        self._head = {**head, "object": "text_completion"}
        self._chunk = self._head | ({"usage": None} if wants_usage else {})
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._prompt_top = prompt_top
        self._echo = echo
        self._scores_only = scores_only
        self._wants_usage = wants_usage
        self._show_ids = show_ids
        self._logprobs: dict[int, TextLogprobs] = {}
        self._untold: dict[int, RequestOutput] = {}  # by choice; what is told of the prompt comes with the first token

    def begin(self, outputs: list[RequestOutput]) -> bytes:
        if self._echo or self._show_ids:
            self._untold = {i: output for i, (output, _) in enumerate(_choices(outputs))}
        return b""

    def news(self, news: News) -> bytes:
        piece = self._piece(news, self._untold.get(news.index))
        if not (piece["text"] or piece["finish_reason"] or news.token_ids):
            return b""
        self._untold.pop(news.index, None)
        return data({**self._chunk, "choices": [piece]})

    def note(self, news: News) -> None:
        """Nothing: the outputs hold all that is told at once."""

    def _piece(self, news: News, prompt: RequestOutput | None) -> dict[str, Any]:
        """A choice with what is new in it; ``prompt`` where nothing was told of it before."""
        text, ids, entries = news.text, news.token_ids, list[Any](news.logprobs or [])
        finish, stop_reason = news.finish_reason, news.stop_reason
        if self._scores_only:
            text, ids, entries = "", [], []
            finish, stop_reason = "length" if finish else None, None
        if prompt is not None and self._echo:
            text, ids = self._prompt_text(prompt) + text, prompt.prompt_token_ids + ids
            entries = list[Any](prompt.prompt_logprobs or []) + entries
        choice: dict[str, Any] = {"index": news.index, "text": text, "logprobs": None, "finish_reason": finish}
        if self._num_top is not None:
            choice["logprobs"] = self._scores(news.index).of(entries, ids)
        if stop_reason is not None:
            choice["stop_reason"] = stop_reason
        if self._show_ids:
            choice["token_ids"] = ids
            if prompt is not None:
                choice["prompt_token_ids"] = prompt.prompt_token_ids
        return choice

    def _scores(self, index: int) -> TextLogprobs:
        if index not in self._logprobs:
            assert self._tokenizer is not None
            self._logprobs[index] = TextLogprobs(self._tokenizer, self._num_top or 0)
        return self._logprobs[index]

    def _prompt_text(self, output: RequestOutput) -> str:
        if output.prompt is not None or self._tokenizer is None:
            return output.prompt or ""
        return self._tokenizer.decode(output.prompt_token_ids, skip_special=False)

    def end(self, outputs: list[RequestOutput], usage: Usage) -> bytes:  # noqa: ARG002  # the Reply protocol's shape
        if not self._wants_usage:
            return DONE
        return data({**self._chunk, "choices": [], "usage": self._usage(usage).openai()}) + DONE

    def _usage(self, usage: Usage) -> Usage:
        return Usage(usage.prompt_tokens, 0, usage.cached_tokens) if self._scores_only else usage

    def error(self, message: str, kind: str) -> bytes:
        return data({"error": {"message": message, "type": kind, "param": None, "code": None}})

    def whole(self, outputs: list[RequestOutput], usage: Usage) -> dict[str, Any]:
        choices = [self._choice(i, output, choice) for i, (output, choice) in enumerate(_choices(outputs))]
        return {**self._head, "choices": choices, "usage": self._usage(usage).openai()}

    def _choice(self, index: int, output: RequestOutput, choice: CompletionOutput) -> dict[str, Any]:
        """The same piece a stream would send if all came at once."""
        news = News(index, choice.text, choice.token_ids, choice.logprobs, choice.finish_reason, choice.stop_reason)
        out = self._piece(news, output)
        if self._prompt_top is not None:
            out["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs, self._prompt_top)
        return out


def _choices(outputs: list[RequestOutput]) -> list[tuple[RequestOutput, CompletionOutput]]:
    return [(output, choice) for output in outputs for choice in output.outputs]
