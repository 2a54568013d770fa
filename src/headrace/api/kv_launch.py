"""The KV store of an engine: whether there is one, where, and what its entries are bound to. Composition only."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path

from headrace import __version__, env
from headrace.config import EngineConfig, kv_format
from headrace.contract.errors import ConfigError
from headrace.contract.layout import KVLayout, Layout
from headrace.kv.client import RemoteStore
from headrace.kv.connector import OpenStore, StoreConnector
from headrace.kv.disk import FOLDER_MODE
from headrace.kv.keys import GRAIN, namespace_digest
from headrace.kv.local import LocalStore
from headrace.kv.objects import ObjectStore, open_bucket
from headrace.kv.place import OFF, default_folder, is_address, is_bucket, settle_capacity
from headrace.kv.records import record_specs
from headrace.kv.secret import read_secret
from headrace.kv.weights import model_files, weights_digest
from headrace.models.context import LayerKV
from headrace.models.sources import ModelSource
from headrace.worker.kv_transfer import KVTransfer
from headrace.worker.worker import Worker

log = logging.getLogger("headrace.kv")

RECORD_FORMAT = "1"


def store_place(config: EngineConfig, layout: Layout, *, votes: bool = False) -> str | None:
    """Where the engine's KV store is: a folder, an address or a bucket; None: there is none.

    ``votes``: it is a rank of a voted group. Raises ConfigError for a store that could never work.
    """
    wish = config.cache.kv_store
    named = wish != "auto"
    if not named:
        wish = env.kv_store() or str(default_folder(env.cache_dir()))
    if wish == OFF:
        return None
    if votes and not named:  # while its fetch is under way a rank's votes wait for idle ranks to wake
        log.info("no KV store: in a voted group it must be named")
        return None
    if is_bucket(wish) and find_spec("obstore") is None:
        raise ConfigError("kv_store", f"{wish} needs obstore: pip install 'headrace[s3]'")
    if not config.cache.prefix_caching or GRAIN % config.cache.block_size:
        if named:
            raise ConfigError("kv_store", f"needs prefix caching and a block_size that divides {GRAIN}")
        log.info("no KV store: it needs prefix caching and a block_size that divides %d", GRAIN)
        return None
    if not isinstance(layout, KVLayout):
        if named:
            raise ConfigError("kv_store", "needs a model that keeps keys and values")
        return None
    return wish


def open_connector(
    config: EngineConfig,
    place: str,
    source: ModelSource,
    layout: Layout,
    layers: list[LayerKV],
    worker: Worker,
    arithmetic: str,
) -> StoreConnector:
    """The connector to the store at ``place``, which opens in the background.

    ``arithmetic`` names what computes (backend, instruction set): others may round otherwise.
    """
    assert isinstance(layout, KVLayout), "store_place gives no other layout a store"
    specs = record_specs(layout, kv_format(config))

    secret = None if config.cache.kv_store_secret is None else read_secret(Path(config.cache.kv_store_secret))
    elsewhere = is_address(place) or is_bucket(place)
    folder = default_folder(env.cache_dir()) if elsewhere else Path(place).expanduser()

    def open_store() -> OpenStore:
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        weights = weights_digest(model_files(source.path), folder / "weights.json")
        facts = [
            ("record format", RECORD_FORMAT),
            ("headrace", __version__),  # another version may round otherwise
            ("grain", str(GRAIN)),
            ("weights", f"dummy {weights}" if source.dummy else weights),
            ("dtype", config.model.dtype),
            ("kv dtype", kv_format(config)),
            ("arithmetic", arithmetic),
            ("layout", repr(layout)),
        ]
        space = namespace_digest(facts)
        if is_bucket(place):
            return OpenStore(ObjectStore(open_bucket(place), space[:16]), space)
        store = RemoteStore(place, secret=secret) if is_address(place) else _local(config, folder, space)
        return OpenStore(store, space)

    mover = KVTransfer(layers, specs, config.cache.block_size, worker.launch)
    return StoreConnector(open_store, specs, mover)


def _local(config: EngineConfig, folder: Path, space: bytes) -> LocalStore:
    held = sum(path.stat().st_size for path in (folder / "segments").glob("*"))
    capacity = settle_capacity(folder, config.cache.kv_store_size, held)
    return LocalStore(folder, capacity, name_space=space[:16])
