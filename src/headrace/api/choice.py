"""Choice: one sequence's deltas become text. Finds stop strings and trims ids, logprobs and text at the right token."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.contract.request import SamplingParams
from headrace.contract.result import TokenDelta, TokenLogprobs

from .output import CompletionOutput, logprob_dict
from .text.answer_forms import Mark
from .text.detokenize import IncrementalDetokenizer
from .text.stops import StopStrings
from .text.text_marks import Piece
from .text.tokenizer import Tokenizer


class Choice:
    """Grows ``output`` from deltas. ``push`` returns the new text; after a stop string nothing more is taken.

    ``marks``: tokens that stand in ``take_pieces`` as marks and nowhere as text.
    Without a tokenizer (dummy models) text stays empty and only ids are collected.
    """

    def __init__(
        self,
        index: int,
        sampling: SamplingParams,
        tokenizer: Tokenizer | None,
        marks: Mapping[int, Mark] | None = None,
    ) -> None:
        self.output = CompletionOutput(index)
        self.wants_stop = False  # a stop string was found: the engine should end the sequence
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        self.num_cached_tokens = 0
        self._sampling = sampling
        self._tokenizer = tokenizer
        self._marks = marks or {}
        self._pieces: list[Piece] = []
        self._text = None
        if tokenizer is not None:
            self._text = IncrementalDetokenizer(tokenizer, skip_special=sampling.skip_special_tokens, continues=True)
        self._stops = StopStrings(sampling.stop_strings, include_stop_str_in_output=sampling.include_stop_str_in_output)

    @property
    def finished(self) -> bool:
        return self.output.finish_reason is not None

    def push(self, delta: TokenDelta) -> str:
        """Takes a delta; returns text that is certain now."""
        if self.finished:
            return ""
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        self.num_cached_tokens = delta.num_cached_tokens
        new = ""
        for i, token in enumerate(delta.token_ids):
            new += self._push_token(token, delta, i)
            if self._stops.match is not None:
                self._end("stop", self._stops.match.stop)
                self.wants_stop = delta.finish_reason is None
                break
        if not self.finished and delta.finish_reason is not None:
            new += self._piece(self._flush())
            self._end_from(delta)
        self.output.text += new
        return new

    def _push_token(self, token: int, delta: TokenDelta, index: int) -> str:
        out = self.output
        out.token_ids.append(token)
        if delta.logprobs is not None:
            self._add_logprobs(delta.logprobs[index])
        ends_here = delta.stop_token is not None and index == len(delta.token_ids) - 1
        if self._text is None or (ends_here and not self._sampling.include_stop_str_in_output):
            return ""  # the token that ends a sequence is not part of its text
        if token in self._marks:
            return self._push_mark(token)
        return self._piece(self._stops.push(self._text.push([token]), len(out.token_ids) - 1))

    def _push_mark(self, token: int) -> str:
        """Text before a mark is complete. The mark itself is a piece of its own and not looked at for stop strings."""
        assert self._text is not None
        before = self._piece(self._flush())
        if self._stops.match is None:
            self._pieces.append(self._marks[token])
        return before

    def _piece(self, text: str) -> str:
        """Keeps the text among the pieces, where there are marks to keep it apart from."""
        if text and self._marks:
            self._pieces.append(text)
        return text

    def take_pieces(self) -> tuple[Piece, ...]:
        """Texts and marks since the last call, in order; none where no marks were given."""
        taken, self._pieces = tuple(self._pieces), []
        return taken

    def _add_logprobs(self, entry: TokenLogprobs) -> None:
        out = self.output
        out.logprobs = out.logprobs if out.logprobs is not None else []
        out.logprobs.append(logprob_dict(entry, self.texts(entry)))
        out.cumulative_logprob = (out.cumulative_logprob or 0.0) + entry.logprob

    def texts(self, entry: TokenLogprobs) -> dict[int, str]:
        """The text of each id an entry names."""
        if self._tokenizer is None:
            return {}
        ids = {entry.token_id, *entry.top_ids}
        return {i: self._tokenizer.token_bytes(i).decode("utf-8", "replace") for i in ids}

    def _flush(self) -> str:
        if self._text is None:
            return ""
        tail = self._stops.push(self._text.flush(), len(self.output.token_ids) - 1)
        return tail + self._stops.flush()

    def _end(self, reason: str, stop_reason: int | str | None) -> None:
        self.output.finish_reason = reason
        self.output.stop_reason = stop_reason

    def _end_from(self, delta: TokenDelta) -> None:
        assert delta.finish_reason is not None
        named = delta.stop_token if delta.stop_token in (self._sampling.stop_token_ids or ()) else None
        self._end(delta.finish_reason, named)
        self.output.error, self.output.error_field = delta.error, delta.error_field
