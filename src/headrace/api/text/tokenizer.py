"""Text to token ids and back.

One class for every checkpoint: the vocabulary and its rules come from a Hugging Face directory or a GGUF
header. Invariants: at most one BOS at the start, whoever writes it; with ``parse_special=False`` no text
yields a control id; decoding is the join of the tokens' bytes, so a stream and a whole text agree.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import tokenizers

from headrace.contract.errors import InvalidRequest, ModelError

from .fewest import Density, density
from .from_directory import from_directory
from .from_gguf import from_gguf
from .settings import ANSWER_MARKS, TokenizerSettings
from .specials import SpecialMatcher

LARGE_CHARS = 4096
"""From here on a text is encoded without the interpreter's lock, so that other threads go on meanwhile."""


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a ``.gguf`` file, or of a directory with ``tokenizer.json`` or a GGUF file in it.

    Raises ModelError that names the file, and the key in it, that is missing or not understood.
    """
    if path.is_file() and path.suffix == ".gguf":
        return Tokenizer(*from_gguf(path))
    if not path.is_dir():
        raise ModelError(str(path), "is neither a .gguf file nor a directory")
    ggufs = sorted(path.glob("*.gguf"))
    if ggufs and not (path / "tokenizer.json").exists():
        return Tokenizer(*from_gguf(ggufs[0]))
    return Tokenizer(*from_directory(path))


class Tokenizer:
    """Encodes and decodes; safe to share between threads. Holds no per-request state."""

    def __init__(self, backend: tokenizers.Tokenizer, settings: TokenizerSettings) -> None:
        added = backend.get_added_tokens_decoder()
        self._backend = backend
        self._settings = settings
        self._added = {index: token.content for index, token in added.items()}
        self._added_ids = {spelling: index for index, spelling in self._added.items()}
        self._literal_lock = threading.Lock()
        self._literal: tokenizers.Tokenizer | None = None
        self._bytes: dict[int, bytes] = {}
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        soft = ANSWER_MARKS.intersection(self._added_ids) - {self._added[index] for index in self.special_ids}
        self._soft = SpecialMatcher(soft)
        self.specials = SpecialMatcher([*soft, *(added[index].content for index in self.special_ids)])
        self.vocab_size: int = max([backend.get_vocab_size(), *(index + 1 for index in added)])

    def as_json(self) -> str:
        """The vocabulary and its rules as a ``tokenizer.json``, for programs that read one; without the template."""
        text: str = self._backend.to_str()
        return text

    @property
    def bos_id(self) -> int | None:
        return self._settings.bos_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Every id that ends an answer; the first is the one templates call ``eos_token``."""
        return self._settings.eos_ids

    @property
    def chat_template(self) -> str | None:
        return self._settings.chat_template

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of ``text``.

        ``add_special`` puts the model's BOS (and, where it has them, other marks) around the text; a BOS
        that the text itself starts with is not doubled. ``parse_special=False`` reads control spellings in
        the text as ordinary characters: use it for text from outside. Lone surrogates become U+FFFD. Time
        is linear in the text.
        """
        text = _well_formed(text)
        ids = self._encode_marked(text) if parse_special else self._encode_plain(text)
        return [*self.with_bos(ids), *self._settings.suffix] if add_special else ids

    def with_bos(self, ids: list[int]) -> list[int]:
        """``ids`` after the model's start marks; a BOS that is there already is not doubled."""
        prefix = self._settings.prefix
        if prefix and ids and ids[0] == prefix[-1] == self.bos_id:
            prefix = prefix[:-1]
        return [*prefix, *ids]

    def check_fits(self, field: str, text: str, context: int) -> None:
        """Refuses a text that cannot leave room in ``context`` tokens, at almost no cost; not all such texts."""
        if len(text) < context or self._density is None:
            return
        if (fewest := self._density.fewest(text)) >= context:
            raise InvalidRequest(
                field, f"at least {fewest} tokens leave no room to generate: the context is {context} tokens"
            )

    @cached_property
    def _density(self) -> Density | None:
        return density(self._backend, self._settings.rule)

    def _encode_marked(self, text: str) -> list[int]:
        ids: list[int] = _encoding(self._backend, text, ids_only=True).ids
        return ids

    def _encode_plain(self, text: str) -> list[int]:
        if not self.specials.occurs_in(text):
            return self._encode_marked(text)
        ids, pos = list[int](), 0
        for start, _ in self._soft.find(text):  # the backend knows no switch for these: cut them in two
            ids += self._encode_unspecial(text[pos : start + 1])
            pos = start + 1
        return ids + self._encode_unspecial(text[pos:])

    def _encode_unspecial(self, text: str) -> list[int]:
        encoding = _encoding(self._literal_backend(), text)
        return self._without_specials(text, encoding.ids, encoding.offsets)

    def _literal_backend(self) -> tokenizers.Tokenizer:
        """The backend that reads control spellings as text. A second one, made when first needed: the library has a
        switch for this, and threads that share it would wait for each other's texts."""
        with self._literal_lock:
            if self._literal is None:
                literal = tokenizers.Tokenizer.from_str(self._backend.to_str())
                literal.encode_special_tokens = True
                self._literal = literal
            return self._literal

    def _without_specials(self, text: str, ids: list[int], spans: list[tuple[int, int]]) -> list[int]:
        """Some vocabularies can *merge* text into a control token; such a token is spelled out instead."""
        forbidden = self.special_ids - {self._settings.unk_id}
        result: list[int] = []
        for index, (start, end) in zip(ids, spans):
            result += self._spell(text[start:end]) if index in forbidden else [index]
        return result

    def _spell(self, text: str) -> list[int]:
        return [index for char in text for index in self._spell_char(char)]

    def _spell_char(self, char: str) -> list[int]:
        for pieces in self._settings.rule.spellings(char):
            found = [self._backend.token_to_id(piece) for piece in pieces]
            ids = [index for index in found if index is not None and index not in self.special_ids]
            if len(ids) == len(pieces):
                return ids
        return [] if self._settings.unk_id is None else [self._settings.unk_id]

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, continues: bool = False) -> str:
        """Text of ``ids``; U+FFFD where the bytes are not UTF-8. Ids outside the vocabulary stand for
        nothing.

        ``continues=True`` says that the ids follow other text: the space that some encoders put before a
        text is then kept.
        """
        text = b"".join(self.visible_bytes(index, skip_special) for index in ids).decode("utf-8", "replace")
        return text[1:] if not continues and self.strips_first_space and text.startswith(" ") else text

    @property
    def strips_first_space(self) -> bool:
        """Whether decoding the start of a text removes one space that encoding had put there."""
        return self._settings.rule.strips_first_space

    def visible_bytes(self, index: int, skip_special: bool) -> bytes:
        """Bytes a token contributes to decoded text: none for a control token that is to be skipped."""
        return b"" if skip_special and index in self.special_ids else self.token_bytes(index)

    def token_bytes(self, index: int) -> bytes:
        """Bytes of one token (its spelling, for a control token); empty for an id outside the vocabulary."""
        known = self._bytes.get(index)
        if known is None:
            known = self._bytes[index] = self._find_bytes(index)
        return known

    def _find_bytes(self, index: int) -> bytes:
        if index in self._added:
            spelling = self._added[index]
            # A whitespace run may be an added token and be spelled with the space mark of its vocabulary.
            plain = index not in self.special_ids and self._settings.rule.is_space_run(spelling)
            return self._settings.rule.to_bytes(spelling) if plain else spelling.encode()
        return self._settings.rule.to_bytes(self.token_text(index))

    def added_id(self, spelling: str) -> int | None:
        """The id of the added token (a control token or not) that is spelled so; None where there is none."""
        return self._added_ids.get(spelling)

    def token_text(self, index: int) -> str:
        """Spelling of one token in the vocabulary; empty for an id outside it."""
        if not 0 <= index < self.vocab_size:
            return ""
        return self._backend.id_to_token(index) or ""


def _encoding(backend: tokenizers.Tokenizer, text: str, *, ids_only: bool = False) -> tokenizers.Encoding:
    if len(text) < LARGE_CHARS:
        return backend.encode(text, add_special_tokens=False)
    encode = backend.encode_batch_fast if ids_only else backend.encode_batch  # only these two give up the lock
    return encode([text], add_special_tokens=False)[0]


def _well_formed(text: str) -> str:
    """``text`` with surrogate pairs joined and lone surrogates replaced: the backend takes valid Unicode
    only.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
