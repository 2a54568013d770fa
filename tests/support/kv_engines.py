"""The true engine over a tiny model with a KV store beside it, and a mover whose faults a test scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import harness
import tiny_models

from headrace._core import Scheduler
from headrace.api.kv_launch import open_transfer
from headrace.contract.layout import KVLayout
from headrace.contract.ports import BlockMover, Bytes
from headrace.engine.engine import Engine
from headrace.engine.roles import RoleConfig, core_settings, make_cadence
from headrace.kernels.resolve import resolve_ops
from headrace.kv.connector import OpenStore, StoreConnector
from headrace.kv.fetcher import open_fetcher
from headrace.kv.keys import GRAIN, namespace_digest
from headrace.kv.local import LocalStore
from headrace.kv.opening import Errand
from headrace.kv.records import block_specs, record_specs
from headrace.models.context import Model
from headrace.models.registry import load_model
from headrace.models.weights import open_checkpoint
from headrace.worker.graphs import Graphs, settle_policy
from headrace.worker.kv_tensors import allocate_kv
from headrace.worker.runner import Runner
from headrace.worker.worker import Worker

ROOMY = 1 << 30


def long_tiny(family: str, folder: Path, window: int | None = None) -> Model:
    """A tiny random model with room for several grains; ``window`` replaces the family's own."""
    config = dict(tiny_models.CONFIGS[family]) | {"max_position_embeddings": 1024}
    if window is not None:
        config["sliding_window"] = window
    path = tiny_models.write_directory(folder / f"{family}-{window}", config, tiny_models.random_tensors(config))
    return load_model(open_checkpoint(path), resolve_ops("cpu", strict=True), exact=True)


class FaultyMover:
    """A BlockMover with scripted faults around a real one."""

    def __init__(self, inner: BlockMover) -> None:
        self._inner = inner
        self.refuse_writes = self.break_writes = self.break_reads = False

    def read(self, grains: Sequence[Sequence[int]]) -> Future[list[dict[int, Bytes]]]:
        return self._broken() if self.break_reads else self._inner.read(grains)

    def write(self, blocks: Sequence[tuple[int, int, int]], payloads: Mapping[tuple[int, int], Bytes]) -> Any:
        if self.refuse_writes:
            raise OSError("scripted: the device takes nothing")
        return self._broken() if self.break_writes else self._inner.write(blocks, payloads)

    @staticmethod
    def _broken() -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(OSError("scripted: the copy broke"))
        return future


def engine_with_store(
    model: Model,
    folder: Path,
    *,
    block_size: int = 16,
    num_blocks: int = 200,
    facts: str = "weights",
    kv_dtype: str = "float32",
    overlap: bool = True,
    store: Callable[[], Any] | None = None,
    wrap: Callable[[BlockMover], BlockMover] = lambda mover: mover,
    observer: Any = None,
    fetch_timeout_s: float = 60.0,
    role: str = "unified",
    own_process: bool = False,
    **limits: Any,
) -> tuple[Engine, StoreConnector]:
    """An engine that computes prompts, with a poisoned pool, as ``harness.make_engine`` makes, and its connector.

    ``own_process``: values are fetched from the folder by a process beside it."""
    limits.setdefault("max_model_len", min(model.max_positions, 1 << 16))
    layout = model.kv_layout
    groups = [(int(g.kind), g.window) for g in layout.groups]
    duty = RoleConfig(role)
    core = Scheduler(
        num_blocks=num_blocks, block_size=block_size, groups=groups, seal_tokens=GRAIN, **core_settings(duty), **limits
    )
    kv = allocate_kv(layout, num_blocks, block_size, kv=kv_dtype, poison=True)
    ops = resolve_ops("cpu")
    graphs = Graphs(
        model,
        ops,
        kv,
        settle_policy("full" if model.capturable else "none", "cpu"),
        (limits.get("token_budget", 512),),
        64,
    )
    worker = Worker(Runner(model, ops, kv, graphs), block_size)
    specs = record_specs(layout, kv_dtype) if isinstance(layout, KVLayout) else block_specs(layout, block_size)
    mover = wrap(open_transfer(kv, layout, specs, block_size, worker.launch))
    space = namespace_digest([("facts", facts), ("kv", kv_dtype)])

    def open_store() -> OpenStore:
        opened = store() if store else LocalStore(folder, ROOMY, name_space=space[:16])
        if not own_process:
            return OpenStore(opened, space)
        errand = Errand(str(folder), space[:16], ROOMY)
        fetcher = open_fetcher(errand, max(spec.bytes_per_grain for spec in specs))
        return OpenStore(opened, space, fetcher=fetcher)

    connector = StoreConnector(open_store, specs, mover, fetch_timeout_s=fetch_timeout_s)
    engine = Engine(core, worker, cadence=make_cadence(duty), overlap=overlap, connector=connector, observer=observer)
    return engine, connector


def serve(engine: Engine, *requests: Any) -> list[harness.Outcome]:
    """Runs requests to their ends; the engine waits for the store where it has to."""
    import time

    deltas: dict[str, list[Any]] = {item.request_id: [] for item in requests}
    for item in requests:
        engine.submit(item)
    end = time.monotonic() + 120
    while engine.intake.busy or not engine.idle:
        assert time.monotonic() < end, "the engine does not come to an end"
        for delta in engine.tick():
            deltas.setdefault(delta.request_id, []).append(delta)  # others may have been submitted before
        if engine.resting:
            engine.intake.wait(0.002)
    assert engine.core.num_used_blocks == 0, "blocks were left behind"
    outcomes = [harness.outcome_of(deltas[item.request_id]) for item in requests]
    assert all(o.finish_reason == "length" for o in outcomes), [d.error for x in deltas.values() for d in x]
    return outcomes
