"""The baseline file: one JSON object per key, with the answers, and every reason it was ever made or changed for.

Numbers are kept as hexadecimal floats: exact, and a reader's decimal beside them. Written whole or not at all.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from headrace.contract.errors import ConfigError
from headrace.contract.files import read_small

from .key import Key

FORMAT = 1
SHIPPED = Path(__file__).parent / "baselines"
WAY_OUT = "bring the file back from version control, or remove it and refresh"


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


def read(path: Path, key: Key, command: str) -> Baseline:
    """The baseline of ``key``. ``command`` makes one that is missing.

    Raises ConfigError naming the file when it is missing, damaged, of another format or another key.
    """
    try:
        found = msgspec.json.decode(read_small(path), type=Baseline)
    except FileNotFoundError:
        raise ConfigError("baseline", f"{path} does not exist; `{command}` makes it") from None
    except OSError as error:
        raise ConfigError("baseline", f"{path}: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError("baseline", f"{path} is damaged ({error}); {WAY_OUT}") from error
    if found.format != FORMAT:
        raise ConfigError("baseline", f"{path}: format {found.format}, this version reads {FORMAT}")
    if found.key != key:
        raise ConfigError("baseline", f"{path} is of {found.key.words}, not of {key.words}; {WAY_OUT}")
    for name, entry in found.samples.items():
        _check_numbers(path, name, entry)
    return found


def _check_numbers(path: Path, name: str, entry: Entry) -> None:
    for what, value in (*(("logprob", v) for v in entry.logprobs), ("nll", entry.nll)):
        try:
            float.fromhex(value or "0")
        except (ValueError, OverflowError):
            words = f"{path} is damaged: sample {name!r}: {what} {value!r} is no hexadecimal float; {WAY_OUT}"
            raise ConfigError("baseline", words) from None


def write(path: Path, baseline: Baseline) -> None:
    """Under its name only when every byte is on the disk. Raises ConfigError naming the file when it cannot be."""
    text = msgspec.json.format(msgspec.json.encode(baseline), indent=1)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(text + b"\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise ConfigError("baseline", f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        _forget(part)


def _forget(part: Path) -> None:
    with suppress(OSError):  # in a folder that cannot be written to there is none
        part.unlink(missing_ok=True)
