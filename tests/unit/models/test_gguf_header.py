"""Broken and hostile GGUF files: every one a ModelError naming the file, quickly and without memory."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pytest
from gguf_files import F32, U32, gguf_bytes, metadata_of, text, write_gguf
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import CONFIGS, random_tensors

from headrace.contract.errors import ModelError
from headrace.models.weights import open_checkpoint
from headrace.models.weights.gguf_header import read_header

METADATA = metadata_of(CONFIGS["llama"])
HUGE = (1 << 64) - 1
EMBED = "token_embd.weight"


def whole() -> bytes:
    return gguf_bytes(METADATA, {EMBED: ((4, 32), 0, bytes(4 * 32 * 4))})


def head(num_tensors: int, num_keys: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_keys)


# what is wrong -> (words of the message, the file)
BROKEN = {
    "empty file": ("wrong magic", b""),
    "wrong magic": ("wrong magic", b"GGML" + whole()[4:]),
    "version 1": ("version 1 is not", b"GGUF" + struct.pack("<I", 1) + whole()[8:]),
    "big-endian": ("little-endian", b"GGUF" + struct.pack(">I", 3) + whole()[8:]),
    "tensor count": ("tensor count", head(HUGE, 0) + bytes(64)),
    "metadata count": ("metadata count", head(0, HUGE) + bytes(64)),
    "plausible count, nothing behind it": ("appears twice", head(100, 100) + bytes(4000)),
    "key length": ("metadata: string length", head(0, 1) + struct.pack("<Q", HUGE) + bytes(64)),
    "string length": (
        "k: string length",
        head(0, 1) + text("k") + struct.pack("<IQ", 8, 1 << 40) + bytes(64),
    ),
    "array length": (
        "k: array length",
        head(0, 1) + text("k") + struct.pack("<IIQ", 9, 4, 1 << 60) + bytes(64),
    ),
    "string array length": (
        "k: array length",
        head(0, 1) + text("k") + struct.pack("<IIQ", 9, 8, 1 << 60) + bytes(64),
    ),
    "nested arrays": ("k: value type 9", head(0, 1) + text("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(64)),
    "value type": ("k: value type 77", head(0, 1) + text("k") + struct.pack("<I", 77) + bytes(64)),
    "not UTF-8": (
        "not UTF-8",
        head(0, 1) + struct.pack("<Q", 1) + b"\xff" + struct.pack("<II", U32, 1) + bytes(64),
    ),
    "same key twice": (
        "k: appears twice",
        head(0, 2) + (text("k") + struct.pack("<If", F32, 1)) * 2 + bytes(64),
    ),
    "number of dims": ("t: has 9 dimensions", head(1, 0) + text("t") + struct.pack("<I", 9) + bytes(64)),
    "zero dim": ("t: shape", head(1, 0) + text("t") + struct.pack("<IQIQ", 1, 0, 0, 0) + bytes(64)),
    "dims overflow": (
        "t: needs bytes",
        head(1, 0) + text("t") + struct.pack("<IQQQQIQ", 4, *[1 << 62] * 4, 0, 0) + bytes(64),
    ),
    "offset": ("t: needs bytes", head(1, 0) + text("t") + struct.pack("<IQIQ", 1, 4, 0, HUGE) + bytes(64)),
    "tensor type": ("type 999", head(1, 0) + text("t") + struct.pack("<IQIQ", 1, 4, 999, 0) + bytes(64)),
    "row not of whole blocks": (
        "blocks of 32",
        head(1, 0) + text("t") + struct.pack("<IQIQ", 1, 33, 2, 0) + bytes(640),
    ),
    "same tensor twice": (
        "t: appears twice",
        head(2, 0) + (text("t") + struct.pack("<IQIQ", 1, 4, 0, 0)) * 2 + bytes(640),
    ),
    "alignment": ("power of two", gguf_bytes({**METADATA, "general.alignment": 24}, {})),
    "data cut off": ("truncated", whole()[:-1]),
    "unsupported block format": ("Q2_K", gguf_bytes(METADATA, {EMBED: ((4, 256), 10, bytes(4 * 84))})),
    "foreign tensor": ("no place for", gguf_bytes(METADATA, {"blk.0.ssm_in.weight": ((4, 4), 0, bytes(64))})),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_file(what: str, tmp_path: Path) -> None:
    message, data = BROKEN[what]
    path = tmp_path / "broken.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=rf"broken\.gguf: .*{message}"):
            open_checkpoint(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_truncation_anywhere(tmp_path: Path) -> None:
    """Cut a whole model file at many places: always a ModelError, at the latest on opening."""
    path = write_gguf(tmp_path / "m.gguf", CONFIGS["llama"], random_tensors(CONFIGS["llama"]))
    data = path.read_bytes()
    for end in [*range(0, 2000, 37), *range(2000, len(data) - 32, len(data) // 40)]:
        path.write_bytes(data[:end])
        with pytest.raises(ModelError):
            open_checkpoint(path)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), min_size=1, max_size=6))
def test_flipped_bytes_never_escape(changes: list[tuple[int, int]]) -> None:
    """Any bytes give a header or a ModelError, nothing else."""
    data = bytearray(whole())
    for at, value in changes:
        data[at % len(data)] = value
    try:
        header = read_header("fuzzed", bytes(data))
    except ModelError:
        return
    assert all(info.offset + info.num_bytes <= len(data) for info in header.tensors.values())


def test_every_scalar_type_is_read() -> None:
    values = {0: ("B", 200), 1: ("b", -3), 2: ("H", 60000), 3: ("h", -300), 4: ("I", 1 << 31), 5: ("i", -7)}
    values |= {6: ("f", 0.5), 7: ("?", True), 10: ("Q", 1 << 63), 11: ("q", -(1 << 40)), 12: ("d", 0.1)}
    body = b"".join(text(f"k{n}") + struct.pack(f"<I{code}", n, v) for n, (code, v) in values.items())
    header = read_header("scalars", head(0, len(values)) + body)
    assert header.metadata == {f"k{n}": v for n, (_, v) in values.items()}


def test_arrays_and_strings_are_read() -> None:
    metadata = {"a.tokens": ["a", "ß", ""], "a.scores": [0.5, -1.0], "a.flags": [True, False], "name": "x"}
    header = read_header("arrays", gguf_bytes(metadata, {}))
    assert header.metadata == metadata
