"""A tokenizer out of a GGUF header: byte-level BPE (``gpt2``) or SentencePiece BPE (``llama``).

Both become the same kind of backend object. Anything the header leaves out gets the value that the format's
other readers assume; anything it names and we do not know is an error.
"""

from __future__ import annotations

import reprlib
from math import isnan
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import BPE

from headrace.contract.errors import ModelError
from headrace.models.weights.gguf_header import read_metadata

from .pieces import SPACE_MARK, PieceKind, PieceRule
from .pretokenizers import KINDS, byte_level
from .settings import END_OF_TURN, TokenizerSettings, distinct

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
BOS_BY_DEFAULT = ("llama3",)
NFC_KINDS = ("qwen2",)


def from_gguf(path: Path) -> tuple[Tokenizer, TokenizerSettings]:
    """Backend and settings of the tokenizer in a GGUF file. Raises ModelError naming the missing or odd
    key.
    """
    header = _Header(path, read_metadata(path))
    model = header.text("model")
    if model == "gpt2":
        return _byte_level(header)
    if model == "llama":
        return _sentencepiece(header)
    raise header.fail("model", f"{model!r} is not supported (gpt2 and llama are)")


class _Header:
    """The ``tokenizer.ggml.*`` keys of one file, with the token list and its types."""

    def __init__(self, path: Path, pairs: dict[str, Any]) -> None:
        self.path, self.pairs = path, pairs
        self.tokens: list[str] = self.row("tokens", str)
        no_types = self.get("token_type") is None
        self.types: list[int] = [NORMAL] * len(self.tokens) if no_types else self.row("token_type", int)
        if len(self.types) != len(self.tokens):
            raise self.fail("token_type", f"{len(self.types)} entries for {len(self.tokens)} tokens")

    def fail(self, key: str, message: str) -> ModelError:
        return ModelError(f"{self.path}: tokenizer.ggml.{key}", message)

    def get(self, key: str, default: Any = None) -> Any:
        return self.pairs.get(f"tokenizer.ggml.{key}", default)

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise self.fail(key, "missing; the file carries no usable tokenizer")
        return value

    def row(self, key: str, *kinds: type) -> list[Any]:
        """An array whose entries are all of these kinds."""
        value = self.need(key)
        if not isinstance(value, list) or not set(map(type, value)) <= set(kinds):
            raise self.fail(key, f"must be an array of {kinds[0].__name__}, got {reprlib.repr(value)}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if value not in (False, True):  # some writers store 0 and 1
            raise self.fail(key, f"must be true or false, got {reprlib.repr(value)}")
        return bool(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self.need(key) if default is None else self.get(key, default)
        if not isinstance(value, str):
            raise self.fail(key, f"must be a text, got {reprlib.repr(value)}")
        return value

    def token_id(self, key: str) -> int | None:
        value = self.get(f"{key}_token_id")
        if value is None:
            return None
        if type(value) is not int:
            raise self.fail(f"{key}_token_id", f"must be a whole number, got {reprlib.repr(value)}")
        if not 0 <= value < len(self.tokens):
            raise self.fail(f"{key}_token_id", f"{value} is outside the {len(self.tokens)} tokens")
        return value

    def chat_template(self) -> str | None:
        value = self.pairs.get("tokenizer.chat_template")
        if value is not None and not isinstance(value, str):
            raise ModelError(f"{self.path}: tokenizer.chat_template", f"must be a text, got {reprlib.repr(value)}")
        return value

    def vocab(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self.tokens)}

    def of_type(self, *kinds: int) -> list[str]:
        return [token for token, kind in zip(self.tokens, self.types) if kind in kinds and token]

    def end_ids(self) -> tuple[int, ...]:
        named = [self.token_id(key) for key in ("eos", "eot", "eom")]
        controls = [i for i, kind in enumerate(self.types) if kind == CONTROL and self.tokens[i] in END_OF_TURN]
        return distinct([*named, *controls])

    def settings(self, rule: PieceRule, add_bos: bool) -> TokenizerSettings:
        bos, eos = self.token_id("bos"), self.token_id("eos")
        return TokenizerSettings(
            rule=rule,
            bos_id=bos,
            eos_ids=self.end_ids(),
            prefix=distinct([bos]) if self.flag("add_bos_token", add_bos) else (),
            suffix=distinct([eos]) if self.flag("add_eos_token", False) else (),
            unk_id=self.token_id("unknown"),
            chat_template=self.chat_template(),
        )

    def add_tokens(self, backend: Tokenizer) -> None:
        """Control tokens and user-defined ones are cut out of the raw text before anything else happens."""
        control = [AddedToken(t, normalized=False, special=True) for t in self.of_type(UNKNOWN, CONTROL)]
        plain = [AddedToken(t, normalized=False, special=False) for t in self.of_type(USER_DEFINED)]
        backend.add_special_tokens(control)
        backend.add_tokens(plain)


def _bpe(header: _Header, merges: list[tuple[str, str]], **options: Any) -> Tokenizer:
    try:
        return Tokenizer(BPE(header.vocab(), merges, **options))
    except Exception as error:  # the backend raises bare Exception for a merge outside the vocabulary
        raise header.fail("merges", f"do not fit the tokens: {error}") from error


def _byte_level(header: _Header) -> tuple[Tokenizer, TokenizerSettings]:
    kind = header.text("pre", "default")
    if kind not in KINDS:
        raise header.fail("pre", f"{kind!r} is not supported; known: {', '.join(sorted(KINDS))}")
    pairs = [merge.partition(" ")[::2] for merge in header.row("merges", str)]
    backend = _bpe(header, pairs, ignore_merges=KINDS[kind] == "llama3")
    if KINDS[kind] in NFC_KINDS:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = byte_level(kind)
    backend.decoder = decoders.ByteLevel()
    header.add_tokens(backend)
    return backend, header.settings(PieceRule(PieceKind.BYTE_LEVEL), KINDS[kind] in BOS_BY_DEFAULT)


def _sentencepiece(header: _Header) -> tuple[Tokenizer, TokenizerSettings]:
    prefix_space = header.flag("add_space_prefix", True)
    unknown = header.token_id("unknown")
    backend = _bpe(
        header,
        _merges_by_score(header),
        unk_token=None if unknown is None else header.tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    mark = normalizers.Replace(" ", SPACE_MARK)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), mark]) if prefix_space else mark
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    header.add_tokens(backend)
    return backend, header.settings(PieceRule(PieceKind.SENTENCEPIECE, prefix_space), add_bos=True)


def _merges_by_score(header: _Header) -> list[tuple[str, str]]:
    """Every way to make a piece of two pieces, best score first.

    SentencePiece always joins the neighbours whose result scores highest, which is a merge list sorted by the
    score of the result. Only NORMAL pieces take part: text that spells a control or byte token must not merge
    into it.
    """
    scores: list[float] = header.row("scores", float, int)
    if len(scores) != len(header.tokens):
        raise header.fail("scores", f"{len(scores)} entries for {len(header.tokens)} tokens")
    if any(map(isnan, scores)):  # no order, so no merges
        raise header.fail("scores", "hold a value that is no number")
    normal = {t: i for i, (t, kind) in enumerate(zip(header.tokens, header.types)) if kind == NORMAL}
    found = []
    for piece, index in normal.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in normal and right in normal:
                found.append((-scores[index], normal[left], normal[right], left, right))
    found.sort()
    return [(left, right) for _, _, _, left, right in found]
