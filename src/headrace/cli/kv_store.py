"""``headrace kv stat|check|purge|gc|size``: looking after the store on this machine. Never loads a model's weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace import env
from headrace.config import resolve
from headrace.contract.errors import ConfigError, StoreError
from headrace.contract.layout import KV_ELEMENT_BYTES, kv_row_bytes

from .console import bytes_text, print_json, print_table, to_stderr, to_stdout
from .flags import ReportFlags, flagged

if TYPE_CHECKING:
    from headrace.kv.local import LocalStore

Tenant = Annotated[
    str | None,
    typer.Option(help="Only what this tenant stored; of engines without tenants, what this cache salt did ('': none)."),
]


@dataclasses.dataclass(frozen=True)
class StoreFlags:
    """Which store: the one that an engine with the same options and environment uses."""

    kv_store: Annotated[
        str | None,
        typer.Option(
            help="The store's folder. Default: as for engines, HEADRACE_KV_STORE, else kv in the cache folder."
        ),
    ] = None
    config: Annotated[Path | None, typer.Option(help="TOML file with engine settings, whose kv_store is meant.")] = None

    def folder(self) -> Path:
        """Raises ConfigError for what is no folder, and says who looks after that."""
        from headrace.kv.place import OFF, settle_place

        setting = resolve({"kv_store": self.kv_store}, self.config).cache.kv_store
        where = settle_place(setting, env.kv_store(), env.cache_dir())
        if where == OFF:
            raise ConfigError("kv_store", "is off: name the folder, --kv-store FOLDER")
        _refuse_elsewhere(where)
        return Path(where).expanduser()


def _refuse_elsewhere(where: str) -> None:
    """Raises ConfigError for a store that is not in one folder of this machine."""
    from headrace.kv.place import check_place, is_address, is_bucket, is_mooncake, is_striped

    check_place(where)
    if is_address(where):
        words = f"`headrace kvstore stat {where}` tells of it; for the rest name its server's folder, on that machine"
        raise ConfigError("kv_store", f"{where} is a server: {words}")
    if is_bucket(where):
        raise ConfigError("kv_store", f"{where} is a bucket: its own tools look after it, a lifecycle rule say")
    if is_mooncake(where):
        raise ConfigError("kv_store", f"{where} is memory that its master looks after")
    if is_striped(where):
        raise ConfigError("kv_store", f"{where} is twelve places: name its folders, one after another")


@contextmanager
def opened(folder: Path) -> Iterator[LocalStore]:
    """The store in ``folder``, for maintenance. Raises StoreError when there is none."""
    from headrace.kv.local import LocalStore
    from headrace.kv.place import NO_LIMIT

    if not (folder / "index").is_dir():
        raise StoreError(str(folder), "there is no KV store here")
    store = LocalStore(folder, NO_LIMIT)
    try:
        yield store
    finally:
        store.close()


@flagged
def stat_command(report: ReportFlags, where: StoreFlags) -> None:
    """How much the store holds."""
    with opened(where.folder()) as store:
        facts = store.stat()
    for name in ("capacity_bytes", "hits", "misses", "puts", "failed_puts", "failed_reads", "evicted", "policy"):
        del facts[name]  # of this opening: all zero
    _tell(facts, report)


@flagged
def check_command(report: ReportFlags, where: StoreFlags) -> None:
    """Read and check every value; damaged ones are dropped. Exit code 1 when there were any."""
    from headrace.kv.reclaim import check

    with opened(where.folder()) as store:
        good, damaged = check(store)
    _tell({"whole": good, "damaged": damaged}, report)
    if damaged:
        raise typer.Exit(1)


@flagged
def purge_command(
    report: ReportFlags,
    where: StoreFlags,
    tenant: Tenant = None,
    everything: Annotated[bool, typer.Option("--all", help="Everybody's values.")] = False,
) -> None:
    """Destroy the values of one tenant, or all: overwritten, then forgotten. Exit code 1 when there were none."""
    from headrace.kv.keys import tenant_tag
    from headrace.kv.reclaim import purge

    if everything == (tenant is not None):
        raise ConfigError("tenant", "say whose values: --tenant NAME, or --all")
    folder = where.folder()
    with opened(folder) as store:
        count = purge(store, None if tenant is None else tenant_tag(tenant))
    _tell({"folder": str(folder), "purged": count}, report)
    if not count:
        to_stderr(f"nothing was stored {'by this tenant ' if tenant is not None else ''}in {folder}")
        raise typer.Exit(1)


@flagged
def gc_command(report: ReportFlags, where: StoreFlags) -> None:
    """Drop what is too old and give back every byte nobody refers to."""
    from headrace.kv.collection import collect
    from headrace.kv.reclaim import expire

    with opened(where.folder()) as store:
        before = store.stat()["file_bytes"]
        expired, collected = expire(store), 0
        while collect(store, everything=True):
            collected += 1
        store.seal()
        after = store.stat()["file_bytes"]
    _tell({"expired": expired, "segments_collected": collected, "freed_bytes": before - after}, report)


@flagged
def size_command(
    model: Annotated[str, typer.Argument(help="A listed name, a path, hf:ORG/NAME.")],
    report: ReportFlags,
    store_size: Annotated[str, typer.Option(help="Size of the store, such as 4GiB.")] = "4GiB",
    kv_dtype: Annotated[str, typer.Option(help=f"One of {', '.join(KV_ELEMENT_BYTES)}.")] = "int16",
) -> None:
    """What a model's KV takes in the store: bytes per token and grain, and how many tokens fit."""
    from headrace.contract.sizes import parse_size

    from .loading import check_model_name
    from .model_facts import model_facts

    check_model_name(model)
    if kv_dtype not in KV_ELEMENT_BYTES:
        raise ConfigError("kv_dtype", f"must be one of {', '.join(KV_ELEMENT_BYTES)}")
    _tell(sizes(model_facts(model)["kv"], parse_size("store_size", store_size), kv_dtype), report)


def sizes(kv: dict[str, Any], store_bytes: int, kv_dtype: str) -> dict[str, Any]:
    """From the facts of a model's KV (``model_facts``, which counts four bytes an element, and knows the records of a
    model that keeps bytes of its own)."""
    from headrace.kv.keys import GRAIN
    from headrace.kv.segment import PAGE, padded

    records = kv["records"] if "records" in kv else _records(kv, kv_dtype)
    on_disk = sum(PAGE + padded(record) for record in records.values() if record)
    return {
        "bytes_per_token": sum(records.values()) // GRAIN,
        **{f"{kind}_record_bytes": size for kind, size in records.items()},
        "disk_bytes_per_grain": on_disk,
        "tokens_in_store": store_bytes // on_disk * GRAIN,
    }


def _records(kv: dict[str, Any], kv_dtype: str) -> dict[str, int]:
    """Bytes of a grain's records of keys and values, by their kind."""
    from headrace.kv.keys import GRAIN

    records = {"block": 0, "state": 0}
    for group in kv["groups"]:
        rows = group["bytes_per_token"] // (4 * kv["head_dim"])
        records["state" if group["window"] else "block"] += rows * kv_row_bytes(kv_dtype, kv["head_dim"]) * GRAIN
    return records


def _tell(facts: dict[str, Any], report: ReportFlags) -> None:
    if report.as_json:
        print_json(facts)
        return
    print_table(("what", "value"), [[name.replace("_", " "), said(name, value)] for name, value in facts.items()])
    to_stdout("")


def said(name: str, value: Any) -> str:
    """A fact's value, for people."""
    return bytes_text(value) if "bytes" in name else f"{value:,}" if isinstance(value, int) else str(value)
