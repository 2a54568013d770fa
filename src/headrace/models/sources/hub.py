"""Models of a hub that speaks Hugging Face's paths.

``/api/models/ORG/NAME/revision/REV`` lists the files of a revision with sizes and checksums;
``/ORG/NAME/resolve/COMMIT/FILE`` is a file. A branch is pinned to its commit first, so a model never mixes
two states of it. Everything the server says is checked, file names above all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from headrace import env
from headrace.contract.errors import PullError, UnknownModel

from .catalogue import models_dir
from .download import Downloader, Meter, Remote
from .files import Checksum, publish_text, safe_name
from .source import Progress
from .transport import Transport

SPEC = re.compile(r"([A-Za-z0-9][\w.-]*)/([A-Za-z0-9][\w.-]*)(?:/([^@]+\.gguf))?(?:@([\w./-]+))?")
COMMIT = re.compile(r"[0-9a-f]{40}")
SMALL = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "modules.json",  # these two say how an encoder's rows become one vector
    "1_Pooling/config.json",
)
INDEX = "model.safetensors.index.json"
MAX_LISTING_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class HubSpec:
    """``hf:ORG/NAME[/FILE.gguf][@REVISION]``; the revision is a branch, a tag or a commit."""

    org: str
    name: str
    file: str | None
    revision: str

    @property
    def folder(self) -> Path:
        return models_dir() / f"hf--{self.org}--{self.name}"

    @property
    def label(self) -> str:
        return f"hf:{self.org}/{self.name}"

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, which cannot change."""
        return COMMIT.fullmatch(self.revision) is not None


def parse_hub_spec(text: str) -> HubSpec:
    """The parts of an ``hf:`` name, given without the prefix. Raises PullError when it is malformed."""
    match = SPEC.fullmatch(text)
    if not match or ".." in text:
        raise UnknownModel(f"hf:{text}", "must be ORG/NAME, ORG/NAME@REVISION or ORG/NAME/FILE.gguf")
    return HubSpec(match[1], match[2], match[3], match[4] or "main")


def cached_hub_model(spec: HubSpec) -> Path | None:
    """The model's folder or GGUF file if this revision was pulled before, by the disk alone."""
    ref = spec.folder / "refs" / quote(spec.revision, safe="")
    commit = ref.read_text("utf-8").strip() if ref.is_file() else spec.revision
    folder = spec.folder / commit
    if not COMMIT.fullmatch(commit) or not _marker(folder, spec).is_file():
        return None
    return _result(folder, (str(file.relative_to(folder)) for file in folder.rglob("*.gguf")), spec)


def pull_hub_model(spec: HubSpec, progress: Progress | None) -> Path:
    """Fetches what a model needs to run; returns its folder, or the file when it is a GGUF model."""
    endpoint, token = env.hub_endpoint(), env.hub_token()
    transport = Transport(bearer={urlsplit(endpoint).netloc: token} if token else {})
    downloader = Downloader(transport, spec.label, Meter(progress))
    pull = _Pull(spec, endpoint, downloader)
    pull.list_files()
    folder = pull.fetch_all()
    ref = spec.folder / "refs" / quote(spec.revision, safe="")
    publish_text(f"{spec.label}@{pull.commit}", _marker(folder, spec))
    publish_text(pull.commit, ref)
    return _result(folder, pull.wanted, spec)


def _marker(folder: Path, spec: HubSpec) -> Path:
    """The file that says a pull was complete: one for the whole model, one for each GGUF file asked for."""
    return folder / (f".complete-{quote(spec.file, safe='')}" if spec.file else ".complete")


def _result(folder: Path, names: Iterable[str], spec: HubSpec) -> Path:
    if spec.file:
        return folder / spec.file
    ggufs = [name for name in names if name.endswith(".gguf")]
    return folder / ggufs[0] if ggufs and not (folder / "config.json").exists() else folder


class _Pull:
    """One pull of one revision: the listing, the choice of files, the files."""

    def __init__(self, spec: HubSpec, endpoint: str, downloader: Downloader) -> None:
        self.spec, self.endpoint, self.downloader = spec, endpoint, downloader
        self.commit = ""
        self.files: dict[str, Remote] = {}
        self.wanted: list[str] = []

    def fail(self, message: str) -> PullError:
        return PullError(self.spec.label, message)

    def list_files(self) -> None:
        """Reads the listing through the downloader, for its retries and deadlines."""
        revision = quote(self.spec.revision, safe="")
        path = f"/api/models/{self.spec.org}/{self.spec.name}/revision/{revision}?blobs=true"
        target = self.spec.folder / f"listing-{revision}.json"
        target.unlink(missing_ok=True)
        target.with_name(target.name + ".part").unlink(missing_ok=True)
        text = self.downloader.fetch(Remote(self.endpoint + path), target).read_bytes()[:MAX_LISTING_BYTES]
        target.unlink()
        try:
            listing = json.loads(text)
            self.commit = listing["sha"]
            if not COMMIT.fullmatch(self.commit):
                raise ValueError(f"commit {self.commit!r}")
            self.files = {item["rfilename"]: self._remote(item) for item in listing["siblings"]}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self.fail(f"the hub's listing is not understood: {error!r}") from error

    def _remote(self, item: dict[str, Any]) -> Remote:
        name = item["rfilename"]
        safe_name(name, self.spec.label)
        lfs = item.get("lfs") or {}
        checksum = None
        if digest := lfs.get("sha256") or lfs.get("oid"):
            checksum = Checksum("sha256", digest.removeprefix("sha256:"))
        elif blob := item.get("blobId"):
            checksum = Checksum("git", blob)
        address = f"{self.endpoint}/{self.spec.org}/{self.spec.name}/resolve/{self.commit}/{quote(name)}"
        return Remote(address, checksum, lfs.get("size") or item.get("size"))

    def fetch_all(self) -> Path:
        folder = self.spec.folder / self.commit
        self.wanted = self._choose(folder)
        for name in self.wanted:
            self._fetch(folder, name)
        return folder

    def _fetch(self, folder: Path, name: str) -> Path:
        if name not in self.files:
            raise self.fail(f"{name} is not among the model's files")
        return self.downloader.fetch(self.files[name], folder / safe_name(name, self.spec.label))

    def _choose(self, folder: Path) -> list[str]:
        """Names of the files to fetch. Sharded weights are those that the index names."""
        if self.spec.file:
            return [self.spec.file]
        small = [name for name in SMALL if name in self.files]
        if INDEX in self.files:
            return [*small, INDEX, *self._shards(self._fetch(folder, INDEX))]
        weights = sorted(n for n in self.files if n.endswith(".safetensors") and "/" not in n)
        if weights and "config.json" in self.files:
            return [*small, *(["model.safetensors"] if "model.safetensors" in weights else weights)]
        ggufs = sorted(name for name in self.files if name.endswith(".gguf"))
        if len(ggufs) == 1:
            return ggufs
        if ggufs:
            names = ", ".join(f"{self.spec.label}/{name}" for name in ggufs)
            raise self.fail(f"holds several GGUF files; choose one: {names}")
        raise self.fail("holds neither safetensors weights with a config.json nor a GGUF file")

    def _shards(self, index: Path) -> list[str]:
        try:
            return sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self.fail(f"{INDEX} is not understood: {error!r}") from error
