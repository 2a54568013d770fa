"""The KV store of an engine: whether there is one, where, and what its entries are bound to. Composition only."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from headrace import __version__, env
from headrace.config import EngineConfig, kv_format
from headrace.contract.errors import ConfigError
from headrace.contract.extras import how_to_get, missing
from headrace.contract.layout import KVLayout, Layout, RecordLayout
from headrace.contract.ports import BlockMover
from headrace.kv.connector import OpenStore, StoreConnector
from headrace.kv.disk import FOLDER_MODE
from headrace.kv.fetcher import open_fetcher
from headrace.kv.keys import GRAIN, namespace_digest
from headrace.kv.opening import Errand, open_store_at
from headrace.kv.place import (
    AUTO,
    OFF,
    check_place,
    default_folder,
    is_address,
    is_bucket,
    is_mooncake,
    is_striped,
    settle_place,
    striped_places,
)
from headrace.kv.records import RecordSpec, block_specs, record_specs
from headrace.kv.secret import read_secret
from headrace.kv.shares import DATA, PARITY
from headrace.kv.weights import model_files, weights_digest
from headrace.models.context import HasKVFacts, LayerKV, Model
from headrace.models.deepseek_v41.config import ARCHITECTURE as V41
from headrace.models.sources import ModelSource
from headrace.worker.block_transfer import BlockTransfer
from headrace.worker.kv_transfer import KVTransfer, Launch
from headrace.worker.worker import Worker

from .kv_host import check_host, with_host_tier

log = logging.getLogger("headrace.kv")

RECORD_FORMAT = "1"


def check_kv_dtype(config: EngineConfig, architecture: str) -> None:
    """Before any weight is loaded: a setting without effect would be believed. Raises ConfigError."""
    if architecture == V41 and config.cache.kv_dtype != "auto":
        raise ConfigError("kv_dtype", f"{architecture} keeps records in formats of its own: leave it at auto")


def store_place(config: EngineConfig, *, votes: bool = False) -> str | None:
    """Where the engine's KV store is: a folder, an address or a bucket; None: there is none.

    ``votes``: it is a rank of a voted group. Raises ConfigError for a store that could never work.
    """
    named = config.cache.kv_store != AUTO
    wish = settle_place(config.cache.kv_store, env.kv_store(), env.cache_dir())
    if wish == OFF:
        return None
    if votes and not named:  # while its fetch is under way a rank's votes wait for idle ranks to wake
        log.info("no KV store: in a voted group it must be named")
        return None
    check_store(config)
    check_host(config, wish)
    if not config.cache.prefix_caching or GRAIN % config.cache.block_size:
        if named:
            raise ConfigError("kv_store", f"needs prefix caching and a block_size that divides {GRAIN}")
        log.info("no KV store: it needs prefix caching and a block_size that divides %d", GRAIN)
        return None
    return wish


def check_store(config: EngineConfig) -> None:
    """Raises ConfigError for a named store that could never work: cheap, so asked before a model is loaded."""
    secret = config.cache.kv_store_secret
    if secret is not None:
        read_secret(Path(secret))
    wish = settle_place(config.cache.kv_store, env.kv_store(), env.cache_dir())
    if wish != OFF and (config.cache.kv_store != AUTO or env.kv_store()):  # a default that is lost stops nobody
        check_place(wish)
        _require_packages(wish)


def _require_packages(wish: str) -> None:
    """Raises ConfigError for a store whose package is not here, or whose list of places cannot be used."""
    places = striped_places(wish) if is_striped(wish) else [wish]
    if is_striped(wish) and missing("pyeclib"):
        raise ConfigError("kv_store", f"{wish} needs pyeclib: {how_to_get('striped')}")
    if is_mooncake(wish) and missing("mooncake"):
        raise ConfigError("kv_store", f"{wish} needs mooncake: {how_to_get('mooncake')}")
    if any(map(is_bucket, places)) and missing("obstore"):
        raise ConfigError("kv_store", f"{wish} needs obstore: {how_to_get('s3')}")


def open_connector(
    config: EngineConfig,
    place: str,
    source: ModelSource,
    model: Model,
    layers: list[LayerKV],
    worker: Worker,
    arithmetic: str,
) -> StoreConnector:
    """The connector to the store at ``place``, which opens in the background.

    ``arithmetic`` names what computes (backend, instruction set): others may round otherwise.
    """
    layout, block_size = model.kv_layout, config.cache.block_size
    keeps_bytes = isinstance(layout, RecordLayout)
    specs = record_specs(layout, kv_format(config)) if isinstance(layout, KVLayout) else block_specs(layout, block_size)
    secret = None if config.cache.kv_store_secret is None else read_secret(Path(config.cache.kv_store_secret))
    elsewhere = is_address(place) or is_bucket(place) or is_striped(place) or is_mooncake(place)
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
            *(model.kv_facts() if isinstance(model, HasKVFacts) else ()),
        ]
        if keeps_bytes:
            facts.append(("block size", str(block_size)))
        if is_striped(place):  # a folder may also be a whole store of its own: no name may mean a value and a share
            facts.append(("stripes", f"{DATA}+{PARITY}"))
        space = namespace_digest(facts)
        errand = Errand(place, space[:16], config.cache.kv_store_size, secret)
        return with_host_tier(config, place, specs, _opened(errand, space, specs, config.cache.kv_fetch))

    return StoreConnector(open_store, specs, open_transfer(layers, layout, specs, block_size, worker.launch))


def _opened(errand: Errand, space: bytes, specs: Sequence[RecordSpec], kv_fetch: str) -> OpenStore:
    """The store, and who reads from it. Raises as ``open_store_at`` does."""
    store, elsewhere = open_store_at(errand), is_address(errand.place)
    if kv_fetch == "thread":
        return OpenStore(store, space, elsewhere, place=errand.place)
    try:
        fetcher = open_fetcher(errand, max(spec.bytes_per_grain for spec in specs))
        return OpenStore(store, space, elsewhere, fetcher, place=errand.place)
    except BaseException:
        store.close()
        raise


def open_transfer(
    layers: Sequence[LayerKV], layout: Layout, specs: Sequence[RecordSpec], block_size: int, launch: Launch
) -> BlockMover:
    """What moves records of this layout."""
    if isinstance(layout, RecordLayout):
        return BlockTransfer(layers[0].k, layout, specs, block_size, launch)
    return KVTransfer(layers, specs, block_size, launch)
