"""Assembly: the deltas of a prompt's choices become one RequestOutput."""

from __future__ import annotations

from headrace.contract.result import TokenDelta

from .choice import Choice
from .output import RequestOutput, logprob_dict
from .prompts import Prepared
from .text.tokenizer import Tokenizer


class Assembly:
    """Collects the choices of one prepared prompt."""

    def __init__(self, prepared: Prepared, tokenizer: Tokenizer | None) -> None:
        self._choices = [Choice(k, request.sampling, tokenizer) for k, request in enumerate(prepared.requests)]
        self._by_id = {r.request_id: c for r, c in zip(prepared.requests, self._choices)}
        self.output = RequestOutput(
            prepared.request_id, prepared.prompt, prepared.token_ids, [c.output for c in self._choices]
        )

    def push(self, delta: TokenDelta) -> bool:
        """Takes a delta. True when the engine should stop this sequence (a stop string was found)."""
        choice = self._by_id[delta.request_id]
        choice.push(delta)
        if choice.prompt_logprobs is not None and self.output.prompt_logprobs is None:
            self.output.prompt_logprobs = [
                None if entry is None else logprob_dict(entry, choice.texts(entry)) for entry in choice.prompt_logprobs
            ]
        self.output.num_cached_tokens = self._choices[0].num_cached_tokens
        self.output.finished = all(c.finished for c in self._choices)
        wants, choice.wants_stop = choice.wants_stop, False
        return wants
