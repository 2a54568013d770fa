"""The engine's book of live requests: which request is which sequence, and what has been reported of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.contract.ports import KVSession
from headrace.contract.request import Request
from headrace.contract.result import PromptLogprobs, TokenLogprobs


@dataclass(slots=True)
class Entry:
    """One live request. ``prompt_logprobs`` fills up over the chunks of its prefill."""

    request: Request
    seq_id: int
    request_id: str  # the request's own, at hand for every delta
    num_cached_tokens: int = 0
    num_reported: int = 0
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    grammar: Any = None  # compiled, once it is
    resumed: tuple[int, ...] = ()  # what another engine had drawn before it came here
    kv: KVSession | None = None  # its dealings with the KV store, where there is one

    @property
    def scores(self) -> list[TokenLogprobs | None] | None:
        """One for each token of the prompt; None where nobody asked. Of one token alone no step brings any."""
        asked = self.request.sampling.prompt_logprobs is not None
        return self.prompt_logprobs or ([None] if asked and len(self.request.prompt_token_ids) == 1 else None)

    def take_prompt_logprobs(self, news: PromptLogprobs) -> None:
        """Files a chunk's rows by position, so that a recomputed chunk overwrites itself."""
        if not self.prompt_logprobs:
            self.prompt_logprobs = [None] * len(self.request.prompt_token_ids)
        n = self.request.sampling.prompt_logprobs or 0
        for i, token in enumerate(news.token_ids):
            self.prompt_logprobs[news.first + i] = news.values.row(i, int(token), n)


class Book:
    """Both directions of request id and sequence id. Sequence ids are never reused."""

    def __init__(self) -> None:
        self._by_seq: dict[int, Entry] = {}
        self._by_request: dict[str, Entry] = {}
        self._next = 1
        self.of_seq: Callable[[int], Entry | None] = self._by_seq.get  # asked for every token of every step

    def open(self, request: Request) -> Entry:
        entry = Entry(request, self._next, request.request_id)
        self._next += 1
        self._by_seq[entry.seq_id] = entry
        self._by_request[request.request_id] = entry
        return entry

    def close(self, entry: Entry) -> None:
        self._by_seq.pop(entry.seq_id, None)
        self._by_request.pop(entry.request.request_id, None)

    def of_request(self, request_id: str) -> Entry | None:
        return self._by_request.get(request_id)

    def entries(self) -> list[Entry]:
        return list(self._by_seq.values())

    def __len__(self) -> int:
        return len(self._by_seq)
