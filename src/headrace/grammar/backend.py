"""The one file that knows xgrammar: vocabulary in, compiled grammars and matchers out. Loaded on first use only.

Importing xgrammar imports transformers, which takes seconds; whoever calls this does so on a builder thread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.contract.errors import HeadraceError, InvalidRequest
from headrace.contract.extras import how_to_get, missing
from headrace.contract.request import StructuredOutputs

from .mask import WordArray, empty_words

MAX_BLANKS = 20  # white space in a row inside JSON; a model that loves line feeds must not print them for ever
NO_TEXT = b"\xff"  # before a token's bytes: no UTF-8 text has it, so only as a token can it be asked for
CONTROL = frozenset(range(0x20)) - {ord("\n")}
ORIGIN = re.compile(r"^\[[\d:]+\] \S+?:\d+: ")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Bytes of each id and the ids that end an answer. Empty: no text and no structural tag can ask for it, as for
    control tokens. Bytes that no UTF-8 text holds: only a structural tag that names the id can."""

    tokens: Sequence[bytes]
    eos_ids: tuple[int, ...]


class Backend:
    """A compiler for one vocabulary. Keeps nothing: the cache that comes with it does not count the texts it keeps, and
    keeps those that fail. Safe to share between threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        if missing("xgrammar"):
            raise HeadraceError(f"constraints need the grammar extra: {how_to_get('grammar')}")
        import xgrammar

        self._xgrammar = xgrammar
        self._vocabulary = vocabulary
        self._any_text = self._compiler(vocabulary.tokens)
        self._json_text = self._compiler([_json_token(token) for token in vocabulary.tokens])

    def _compiler(self, tokens: Sequence[bytes]) -> Any:
        info = self._xgrammar.TokenizerInfo(
            list(tokens),
            self._xgrammar.VocabType.RAW,
            vocab_size=len(tokens),
            stop_token_ids=list(self._vocabulary.eos_ids),
        )
        return self._xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, wanted: StructuredOutputs) -> Any:
        """A compiled grammar. Raises InvalidRequest naming the field when it is none."""
        try:
            compiled = self._compile(wanted)
        except (RuntimeError, ValueError, RecursionError) as error:
            raise InvalidRequest(wanted.field, ORIGIN.sub("", str(error).strip()) or "cannot be compiled") from error
        self._require_a_beginning(compiled, wanted)
        return compiled

    def _require_a_beginning(self, compiled: Any, wanted: StructuredOutputs) -> None:
        """A rule that only leads to itself compiles, and then allows nothing."""
        words = empty_words(len(self._vocabulary.tokens))
        self.matcher(compiled).fill(words)
        if not words.any():
            raise InvalidRequest(wanted.field, "no text satisfies it")

    def _compile(self, wanted: StructuredOutputs) -> Any:
        compiler = self._any_text
        if wanted.regex is not None:
            return compiler.compile_regex(wanted.regex)
        if wanted.grammar is not None:
            return compiler.compile_grammar(wanted.grammar)
        if wanted.choice is not None:
            return compiler.compile_grammar("root ::= " + " | ".join(map(_quoted, wanted.choice)))
        if wanted.structural_tag is not None:
            return self._json_text.compile_structural_tag(_schema_text(wanted.structural_tag))
        schema = '{"type": "object"}' if wanted.json is None else _schema_text(wanted.json)
        return self._json_text.compile_json_schema(
            schema, any_whitespace=True, max_whitespace_cnt=MAX_BLANKS, strict_mode=wanted.json is not None
        )

    def num_bytes(self, compiled: Any) -> int:
        """What it holds in memory."""
        return int(compiled.memory_size_bytes)

    def matcher(self, compiled: Any) -> Matcher:
        return Matcher(self._xgrammar.GrammarMatcher(compiled))


class Matcher:
    """Where one sequence stands in its grammar."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def accept(self, token: int) -> bool:
        """Takes a token; False, and unmoved, when the grammar does not allow it."""
        return bool(self._inner.accept_token(token))

    def rollback(self, count: int) -> None:
        """Takes back the last ``count`` tokens."""
        self._inner.rollback(count)

    @property
    def ended(self) -> bool:
        """An end token was accepted: nothing can follow."""
        return bool(self._inner.is_terminated())

    def fill(self, words: WordArray) -> None:
        """Sets the bits of the ids that may come next."""
        self._inner.fill_next_token_bitmask(words[None])


def _json_token(token: bytes) -> bytes:
    """No text for a token with a raw control character. JSON forbids them inside strings, but the compiler lets them
    into strings of bounded length; outside strings a line feed and blanks are all the white space one needs. Where a
    structural tag allows any token it may come."""
    return token if CONTROL.isdisjoint(token) else NO_TEXT + token


def _quoted(text: str) -> str:
    """A string literal of the grammar notation. The compiler takes NUL for an end."""
    if "\0" in text:
        raise ValueError("a choice cannot hold the character NUL")
    escapes = {"\\": "\\\\", '"': '\\"'}
    return '"' + "".join(escapes.get(char, char if char >= " " else f"\\x{ord(char):02x}") for char in text) + '"'


def _schema_text(schema: Any) -> str:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    json.loads(text, parse_constant=_no_constant)  # raises ValueError, in words better than the compiler's
    return text


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
