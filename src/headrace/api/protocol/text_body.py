"""``/v1/completions``: the request. A prompt is text or token ids, or a list of either."""

from __future__ import annotations

from typing import Any

from headrace.contract.errors import InvalidRequest
from headrace.contract.request import SamplingParams

from .sampling import SamplingBody
from .structure import structure

MAX_PROMPTS = 4096


class TextBody(SamplingBody, kw_only=True):
    """The whole body. ``echo`` puts the prompt before the continuation; with it ``max_tokens`` may be 0."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None

    @property
    def scores_only(self) -> bool:
        """Nothing is generated: the prompt comes back, scored if asked."""
        return bool(self.echo) and self.max_tokens == 0

    def sampling(self) -> SamplingParams:
        """Raises InvalidRequest for what is not served."""
        if self.suffix:
            raise InvalidRequest("suffix", "is not served: this model continues, it does not fill in")
        if self.best_of not in (None, self.n or 1):
            raise InvalidRequest("best_of", f"must equal n ({self.n or 1}) or be left out")
        fields = self.sampling_fields()
        if self.scores_only:
            fields["max_tokens"] = 1  # the engine always draws one; the reply leaves it out
        if self.logprobs is not None:
            fields["logprobs"] = self.logprobs
            if self.echo:
                fields["prompt_logprobs"] = max(self.logprobs, self.prompt_logprobs or 0)
        fields["structured_outputs"] = structure(self.response_format, self.structured_outputs)
        return SamplingParams(**fields)

    def prompts(self) -> list[str | list[int]]:
        """One or more prompts, in order. Raises InvalidRequest naming the one at fault."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt:
            raise InvalidRequest("prompt", "must hold at least one prompt or token id")
        if isinstance(self.prompt[0], int):
            return [_ids(self.prompt)]
        if len(self.prompt) > MAX_PROMPTS:
            raise InvalidRequest("prompt", f"at most {MAX_PROMPTS} prompts at once, got {len(self.prompt)}")
        return [_one(item, f"prompt[{i}]") for i, item in enumerate(self.prompt)]


def _ids(items: list[Any]) -> list[int]:
    for i, item in enumerate(items):
        if not isinstance(item, int):
            raise InvalidRequest(f"prompt[{i}]", "a prompt of token ids holds whole numbers only")
    return items


def _one(item: Any, where: str) -> str | list[int]:
    if isinstance(item, int):
        raise InvalidRequest(where, "is a token id among prompts; put token ids into a list of their own")
    if not item:
        raise InvalidRequest(where, "must not be empty")
    out: str | list[int] = item
    return out
