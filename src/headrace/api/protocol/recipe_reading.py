"""Answers of the DeepSeek-V4.1 family, read by the recipe's parser from token ids: its chunks become events.

A call counts as complete only if its arguments parse and it names a function that was offered; the parser itself checks
neither. Tokens whose text is held back for a stop string wait, so that nothing of a stop string is ever told.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from headrace.contract.request import SamplingParams

from ..text.answer_forms import Mark
from ..text.tokenizer import Tokenizer
from .answer import CallBegun, CallEnded, CallGrew, Event, Said, Thought
from .call_body import object_of
from .held_tokens import HeldTokens
from .news import News
from .thought_count import ThoughtCount


class RecipeReading:
    """One request's answers. ``names``: functions that may be called; without any, calls are text. ``hidden``: ids that
    are not part of an answer."""

    plain = False
    mark_ids: Mapping[int, Mark] = {}

    def __init__(
        self,
        recipe: Any,
        decoder: Any,
        tokenizer: Tokenizer,
        in_thought: bool,
        names: Collection[str],
        sampling: SamplingParams,
        hidden: Collection[int],
        thoughts: ThoughtCount,
    ) -> None:
        self._recipe, self._decoder, self._in_thought = recipe, decoder, in_thought
        self.tokenizer, self.names, self.hidden, self._thoughts = tokenizer, names, hidden, thoughts
        self.skips_special = sampling.skip_special_tokens
        self.includes_stop = sampling.include_stop_str_in_output

    def parser(self) -> RecipeParser:
        return RecipeParser(self)

    def thought_tokens(self, ids: Sequence[int]) -> int | None:
        return self._thoughts.of(ids)

    def processor(self) -> Any:
        """The package's parser, made to write chat chunks: of all its forms the one nearest to events."""
        recipe = self._recipe
        conversation = recipe.Conversation([], thinking_mode=self._in_thought)
        request = recipe.ConversationRequest(conversation, recipe.ModelVersion.DeepseekV41Flash)
        options = recipe.ParsingOptions(
            parse_tool_calls=bool(self.names),
            thinking_initial_stage=recipe.ThinkingInitialStage.ReasoningStart if self._in_thought else None,
        )
        processor = recipe.StreamProcessor(
            recipe.ChatCompletionRequest.chunk_generator(request, "", ""), options, self._decoder
        )
        processor.push(recipe.InferenceChunk.ready())
        return processor

    def chunk(self, ids: list[int]) -> Any:
        return self._recipe.InferenceChunk.tokens(ids)

    def text_chunk(self, text: str) -> Any:
        return self._recipe.InferenceChunk.text(text)

    def last_chunk(self, reason: str) -> Any:
        reasons = self._recipe.InferenceFinishReason
        return self._recipe.InferenceChunk.finish(reasons.Stop if reason == "stop" else reasons.Length)


class RecipeParser:
    """One choice's news in, events out."""

    def __init__(self, reading: RecipeReading) -> None:
        self._reading = reading
        self._processor = reading.processor()
        self._held = HeldTokens(reading.tokenizer, reading.skips_special)
        self._calls: list[tuple[str, str]] = []  # name, arguments so far

    def take(self, news: News) -> list[Event]:
        self._held.put(news.token_ids, news.text)
        cut = news.finish_reason is not None and isinstance(news.stop_reason, str)  # the rest is the stop string's
        ids = self._shown(self._held.take() if news.finish_reason is None or cut else self._rest(news))
        events = self._push_ids(ids)
        if cut and (text := self._split_token()):
            events += self._push(self._reading.text_chunk(text))
        if news.finish_reason is not None:
            events += self._push(self._reading.last_chunk(news.finish_reason))
            events += self._events(self._processor.finish())
            events += self._ended()
        return events

    def _split_token(self) -> str:
        """What of the next token comes before the stop string: part of an ordinary token, so it spells no mark."""
        split = self._held.split
        return "" if split is None or split[0] in self._reading.hidden else split[1]

    def _rest(self, news: News) -> list[int]:
        """A token that ends an answer is the last one, and no part of the text unless that was asked for."""
        ids = self._held.take_all()
        return ids[:-1] if news.finish_reason == "stop" and not self._reading.includes_stop else ids

    def _shown(self, ids: list[int]) -> list[int]:
        return [index for index in ids if index not in self._reading.hidden]

    def _push_ids(self, ids: list[int]) -> list[Event]:
        """Bytes at the end that are no character are told as text: given as tokens the package would wait for the rest
        of them, and drop at the end all that came in one piece with them."""
        cut, told = len(ids), ""
        raw = [self._reading.tokenizer.token_bytes(index) for index in ids]
        while cut and (text := b"".join(raw[:cut]).decode("utf-8", "replace")).endswith("\N{REPLACEMENT CHARACTER}"):
            cut, told = cut - 1, told or text
        events = self._push(self._reading.chunk(ids[:cut])) if cut else []
        if told:
            rest = told.removeprefix(b"".join(raw[:cut]).decode("utf-8", "replace"))
            events += self._push(self._reading.text_chunk(rest))
        return events

    def _push(self, chunk: Any) -> list[Event]:
        return self._events(self._processor.push(chunk))

    def _events(self, chunks: list[Any]) -> list[Event]:
        events: list[Event] = []
        for chunk in chunks:
            for choice in json.loads(chunk.to_json())["choices"]:
                events += self._parts(choice["delta"])
        return events

    def _parts(self, delta: dict[str, Any]) -> list[Event]:
        events: list[Event] = []
        if delta.get("reasoning_content"):
            events.append(Thought(delta["reasoning_content"]))
        if delta.get("content"):
            events.append(Said(delta["content"]))
        for call in delta.get("tool_calls") or ():
            events += self._call(call["index"], call.get("id"), call["function"])
        return events

    def _call(self, index: int, name_id: str | None, function: dict[str, Any]) -> list[Event]:
        events: list[Event] = []
        if name_id is not None:
            events += self._ended()
            self._calls.append((function["name"], ""))
            events.append(CallBegun(index, name_id, function["name"]))
        if more := function.get("arguments"):
            name, arguments = self._calls[index]
            self._calls[index] = name, arguments + more
            events.append(CallGrew(index, more))
        return events

    def _ended(self) -> list[Event]:
        """The latest call is over, well or not."""
        if not self._calls:
            return []
        name, arguments = self._calls[-1]
        whole = object_of(arguments) is not None
        return [CallEnded(len(self._calls) - 1)] if whole and name in self._reading.names else []
