"""The baseline file: one JSON object per key, with the answers, and every reason it was ever made or changed for.

Numbers are kept as hexadecimal floats: exact, and a reader's decimal beside them. Written whole or not at all.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from headrace.contract.errors import ConfigError
from headrace.contract.files import read_small

from .key import Key

FORMAT = 1
SHIPPED = Path(__file__).parent / "baselines"


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One sample's answer. ``index``: its place in the suite. ``inputs``: digest of what was asked. ``bits``: digest
    of all logprobs reported. ``nll``: sum of negative log-likelihoods of the prompt (hexadecimal), where scored."""

    index: int
    group: str
    inputs: str
    ids: list[int]
    logprobs: list[str]
    bits: str
    nll: str | None = None
    perplexity: float | None = None


class Reason(msgspec.Struct, frozen=True):
    """Why the file was written: once per refresh, never removed."""

    date: str
    headrace: str
    reason: str


class Baseline(msgspec.Struct, frozen=True):
    """``weights``: see ``key.weights_digest``. ``samples`` by name, in the suite's order."""

    format: int
    key: Key
    weights: str
    history: list[Reason]
    samples: dict[str, Entry]


def read(path: Path) -> Baseline:
    """Raises ConfigError naming the file when it is missing, damaged or of another format."""
    try:
        found = msgspec.json.decode(read_small(path), type=Baseline)
    except FileNotFoundError:
        words = f"{path} does not exist; `headrace golden refresh --reason ...` makes it"
        raise ConfigError("baseline", words) from None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError("baseline", f"{path}: {error}") from error
    if found.format != FORMAT:
        raise ConfigError("baseline", f"{path}: format {found.format}, this version reads {FORMAT}")
    return found


def write(path: Path, baseline: Baseline) -> None:
    """Under its name only when every byte is on the disk."""
    text = msgspec.json.format(msgspec.json.encode(baseline), indent=1)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(text + b"\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
