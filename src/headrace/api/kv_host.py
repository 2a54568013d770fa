"""The host tier of an engine's KV store: whether there is one, how large, and whom it asks. Composition only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headrace.config import EngineConfig
from headrace.contract.errors import ConfigError
from headrace.kv.connector import OpenStore, Store
from headrace.kv.host_memory import HostMemory
from headrace.kv.host_tier import HostTier, WindowReader
from headrace.kv.neighbours import Neighbours
from headrace.kv.place import is_address, is_bucket, is_mooncake, is_striped
from headrace.kv.records import Match, RecordSpec
from headrace.kv.secret import read_secret
from headrace.kv.service import LOOPBACK

DEFAULT_BYTES = 256 << 20


def host_bytes(config: EngineConfig, place: str) -> int:
    """What windows may take of this engine's memory. A folder's values are in the system's page cache anyway, so it
    gets none unless asked for. Raises ConfigError where windows would be kept nowhere."""
    asked, far = config.cache.kv_host_memory, is_address(place) or is_bucket(place) or is_striped(place)
    only_here = config.cache.kv_windows == "memory"
    if asked is None:
        return DEFAULT_BYTES if far or is_mooncake(place) or only_here else 0
    if asked == 0 and only_here:
        raise ConfigError("kv_host_memory", "must not be 0 where kv_windows is memory: windows would be kept nowhere")
    return asked


def directory_of(config: EngineConfig, place: str) -> str | None:
    """The server that knows what engines hold: the one named, else the store's own where it is one."""
    return config.cache.kv_directory or (place if is_address(place) else None)


def check_host(config: EngineConfig, place: str) -> None:
    """Raises ConfigError for a host tier that could never work."""
    host_bytes(config, place)
    secret = config.cache.kv_store_secret
    if secret is None and not config.cache.kv_host_listen.startswith(LOOPBACK):
        raise ConfigError("kv_host_listen", "beyond this machine needs kv_store_secret")


def with_host_tier(config: EngineConfig, place: str, specs: tuple[RecordSpec, ...], opened: OpenStore) -> OpenStore:
    """The store with memory before it; the same one where no layer has a window or there is to be no memory.

    Raises StoreError, and closes the store, where this engine's memory cannot be served.
    """
    size = host_bytes(config, place)
    if size == 0 or all(spec.match is not Match.TRAILING for spec in specs):
        return opened
    try:
        tier = _tier(config, directory_of(config, place), opened.store, HostMemory(size))
    except BaseException:
        opened.close()
        raise
    fetcher = None if opened.fetcher is None else WindowReader(tier, opened.fetcher)
    return replace(opened, store=tier, counts=tier.counts, fetcher=fetcher)


def _tier(config: EngineConfig, directory: str | None, store: Store, memory: HostMemory) -> HostTier:
    path, neighbours = config.cache.kv_store_secret, None
    if directory is not None:
        secret = None if path is None else read_secret(Path(path))
        neighbours = Neighbours(memory, directory, config.cache.kv_host_listen, secret=secret)
    return HostTier(store, memory, neighbours, stores_windows=config.cache.kv_windows == "store")
