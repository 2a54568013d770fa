"""Logprobs in OpenAI's two spellings: chat's list of tokens and the parallel lists of text completion."""

from __future__ import annotations

from typing import Any

from headrace.api.output import Logprob
from headrace.contract.request import MAX_TOP_LOGPROBS

from ..text.tokenizer import Tokenizer

Entry = dict[int, Logprob]
PromptRows = list[dict[str, Any] | None]
FLOOR = -9999.0  # JSON has no minus infinity; clients know this number


def number(value: float) -> float:
    """A logprob that JSON can hold."""
    return max(value, FLOOR) if value == value else FLOOR


def chat_logprobs(entries: list[Entry], ids: list[int], num_top: int, tokenizer: Tokenizer) -> dict[str, Any]:
    """The ``logprobs`` object of a chat choice for tokens ``ids``."""
    content = []
    for token, entry in zip(ids, entries):
        best = sorted(entry.items(), key=lambda item: item[1].rank)[:num_top]
        top = [_chat_token(tokenizer, index, logprob) for index, logprob in best]
        content.append({**_chat_token(tokenizer, token, entry[token]), "top_logprobs": top})
    return {"content": content, "refusal": None}


def _chat_token(tokenizer: Tokenizer, token: int, logprob: Logprob) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token)
    return {"token": raw.decode("utf-8", "replace"), "logprob": number(logprob.logprob), "bytes": list(raw)}


class TextLogprobs:
    """The ``logprobs`` object of a text choice; offsets run on from one piece of a stream to the next."""

    def __init__(self, tokenizer: Tokenizer, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._offset = 0

    def of(self, entries: list[Entry | None], ids: list[int]) -> dict[str, Any]:
        """``entries`` may hold None: the first token of a prompt has no distribution before it."""
        tokens = [self._text(token) for token in ids]
        offsets = []
        for text in tokens:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": tokens,
            "token_logprobs": [None if e is None else number(e[i].logprob) for i, e in zip(ids, entries)],
            "top_logprobs": [None if e is None else self._top(e) for e in entries],
            "text_offset": offsets,
        }

    def _text(self, token: int) -> str:
        return self._tokenizer.token_bytes(token).decode("utf-8", "replace")

    def _top(self, entry: Entry) -> dict[str, float]:
        """The best ids and the token itself, by text; of two ids with one text the likelier stays."""
        chosen = next(iter(entry))
        best = [(i, x) for i, x in entry.items() if i == chosen or x.rank <= self._num_top]
        best.sort(key=lambda item: item[1].rank, reverse=True)
        return {self._text(i): number(logprob.logprob) for i, logprob in best}


def prompt_logprobs(entries: list[Entry | None] | None, num_top: int = MAX_TOP_LOGPROBS) -> PromptRows | None:
    """``prompt_logprobs`` as vLLM reports them: by token id, each token's own and the best ``num_top``."""
    if entries is None:
        return None
    return [None if entry is None else _rows(entry, num_top) for entry in entries]


def _rows(entry: Entry, num_top: int) -> dict[str, Any]:
    own = next(iter(entry))
    return {str(i): _row(logprob) for i, logprob in entry.items() if i == own or logprob.rank <= num_top}


def _row(logprob: Logprob) -> dict[str, Any]:
    return {"logprob": number(logprob.logprob), "rank": logprob.rank, "decoded_token": logprob.decoded_token}
