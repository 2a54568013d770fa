"""A tokenizer out of a Hugging Face directory.

``tokenizer.json`` holds the vocabulary and its rules; the special ids are spread over
``tokenizer_config.json``, ``generation_config.json`` and ``config.json``, and the template may be a file of
its own.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from headrace.contract.errors import ModelError
from headrace.contract.files import read_small
from headrace.contract.plain import INT32_MAX
from headrace.models.weights.hf_config import read_json_object

from .pieces import SPACE_MARK, PieceKind, PieceRule
from .settings import TokenizerSettings, distinct

log = logging.getLogger("headrace.tokenizer")

NO_SETTINGS = (
    "%s holds no tokenizer_config.json: prompts begin without the begin token (id %d in config.json), which may change "
    "answers; copy that file from where the model came"
)


def from_directory(path: Path) -> tuple[Tokenizer, TokenizerSettings]:
    """Backend and settings of the tokenizer in a directory. Raises ModelError naming the file at fault."""
    file = path / "tokenizer.json"
    if not file.is_file():
        raise ModelError(str(file), "missing; a tokenizer needs this file or a GGUF model")
    try:
        backend = Tokenizer.from_file(str(file))
    except Exception as error:  # the backend raises bare Exception for every kind of damage
        raise ModelError(str(file), f"is not a tokenizer: {error}") from error
    backend.no_truncation()  # some files cut at 128 tokens; a prompt must never be cut silently
    backend.no_padding()
    return backend, _settings(backend, path)


def _settings(backend: Tokenizer, path: Path) -> TokenizerSettings:
    config = _read_json(path / "tokenizer_config.json")
    bos = _named_id(backend, config.get("bos_token"))
    eos = _named_id(backend, config.get("eos_token"))
    model = _read_json(path / "config.json")
    text = model.get("text_config")  # what it must be, the model's own reader says
    declared = [_read_json(path / "generation_config.json"), model, text if isinstance(text, dict) else {}]
    prefix, suffix = _wrapping(backend)
    begin = _id_list(model.get("bos_token_id"))
    if begin and not prefix and not (path / "tokenizer_config.json").is_file():
        log.warning(NO_SETTINGS, path, begin[0])
    return TokenizerSettings(
        rule=_piece_rule(backend),
        bos_id=bos,
        eos_ids=distinct([eos, *(i for source in declared for i in _id_list(source.get("eos_token_id")))]),
        prefix=_forced(prefix, bos, config.get("add_bos_token"), at_start=True),
        suffix=_forced(suffix, eos, config.get("add_eos_token"), at_start=False),
        unk_id=_named_id(backend, config.get("unk_token")),
        chat_template=_chat_template(path, config),
    )


def _read_json(file: Path) -> dict[str, Any]:
    """What a file says, if it is there. Errors: ModelError."""
    return read_json_object(file) if file.exists() else {}


def _named_id(backend: Tokenizer, token: Any) -> int | None:
    """Id of a token given as its spelling or as ``{"content": spelling}``."""
    if isinstance(token, dict):
        token = token.get("content")
    return backend.token_to_id(token) if isinstance(token, str) else None


def _id_list(value: Any) -> list[int]:
    """Those that can be ids at all: no token ends where others are named."""
    values = value if isinstance(value, list) else [value]
    return [i for i in values if isinstance(i, int) and not isinstance(i, bool) and 0 <= i <= INT32_MAX]


def _wrapping(backend: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the file's own rules put before and after a text, found by wrapping a probe."""
    probe = backend.encode("a", add_special_tokens=False).ids
    whole = backend.encode("a", add_special_tokens=True).ids
    for start in range(len(whole) - len(probe) + 1):
        if whole[start : start + len(probe)] == probe:
            return tuple(whole[:start]), tuple(whole[start + len(probe) :])
    return (), ()


def _forced(found: tuple[int, ...], token: int | None, wanted: Any, *, at_start: bool) -> tuple[int, ...]:
    """An explicit ``add_bos_token``/``add_eos_token`` overrides what the file's rules do."""
    if token is None or not isinstance(wanted, bool) or wanted == (token in found):
        return found
    if not wanted:
        return tuple(i for i in found if i != token)
    return (token, *found) if at_start else (*found, token)


def _parts(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if decoder:
        yield decoder
        for inner in decoder.get("decoders", ()):
            yield from _parts(inner)


def _piece_rule(backend: Tokenizer) -> PieceRule:
    """How pieces spell bytes, read off the file's own decoder."""
    raw = getattr(backend.decoder, "__getstate__", lambda: b"null")()
    parts = list(_parts(json.loads(raw))) if backend.decoder is not None else []
    kinds = {part["type"] for part in parts}
    if "ByteLevel" in kinds:
        return PieceRule(PieceKind.BYTE_LEVEL)
    marks = any(p["type"] == "Replace" and p["pattern"].get("String") == SPACE_MARK for p in parts)
    if marks or kinds & {"ByteFallback", "Metaspace"}:
        return PieceRule(PieceKind.SENTENCEPIECE, any(_strips_space(part) for part in parts))
    if "WordPiece" in kinds:
        return PieceRule(PieceKind.WORDPIECE, strips_first_space=True)
    return PieceRule(PieceKind.PLAIN)


def _strips_space(part: dict[str, Any]) -> bool:
    if part["type"] == "Metaspace":
        return bool(part.get("prepend_scheme", "always") != "never")
    return bool(part["type"] == "Strip" and part.get("content") == " " and part.get("start", 0) > 0)


def _chat_template(path: Path, config: dict[str, Any]) -> str | None:
    """The template file wins over the config entry; of several named templates the one called ``default``."""
    file = path / "chat_template.jinja"
    if file.exists():
        try:
            return read_small(file).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(str(file), f"cannot be read: {error}") from error
    value = config.get("chat_template")
    if isinstance(value, list):
        named = [entry.get("template") for entry in value if isinstance(entry, dict) and entry.get("name") == "default"]
        value = named[-1] if named else None
    return value if isinstance(value, str) else None
