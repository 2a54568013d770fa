"""A burst of loads or hand-overs while the device is busy leaves room in its queue for the steps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from headrace._core import Scheduler
from headrace.contract.errors import WorkerError
from headrace.contract.request import Request, SamplingParams
from headrace.engine.admission import add_sequence, sequence_fields
from headrace.engine.book import Book, Entry
from headrace.engine.engine import Engine
from headrace.engine.hand_over import MOST_COPIES, Giver, Taker
from headrace.engine.kv_traffic import MOST_LOADS, KVTraffic
from headrace.engine.local_hand_off import LocalHandOff
from headrace.engine.roles import RoleConfig, core_settings, make_cadence
from headrace.worker.device import MAX_QUEUED, DeviceThread
from headrace.worker.fake import FakeWorker

MANY = MAX_QUEUED + 6
GRAIN = 128


class Busy:
    """A device in the midst of a long step."""

    def __init__(self) -> None:
        self.device, self.gate, begun = DeviceThread(), threading.Event(), threading.Event()
        self.device.launch(lambda: (begun.set(), self.gate.wait(60)))
        assert begun.wait(60)

    def end_step(self) -> None:
        self.gate.set()
        self.device.launch(lambda: None).result(60)


@pytest.fixture
def busy() -> Iterator[Busy]:
    made = Busy()
    yield made
    made.gate.set()
    made.device.close()


class Fetched:
    """A KVSession whose one grain is in memory already, and a connector that gives nothing but such."""

    first = 0
    disabled = False

    def __init__(self, device: DeviceThread) -> None:
        self._device = device
        self.loads: list[Future[None]] = []

    def open(self, *_: Any) -> Fetched:
        return self

    def num_external_tokens(self) -> int:
        return GRAIN

    def load(self, _: Any) -> Future[None]:
        self.loads.append(self._device.launch(lambda: None))
        return self.loads[-1]

    def cancel(self) -> None:
        """Nothing was loaded."""

    def disable(self, _: str) -> None:
        self.disabled = True


def begun(traffic: KVTraffic, core: Scheduler, number: int) -> Entry:
    prompt = [number, *range(GRAIN + 3)]
    entry = Book().open(Request(request_id=f"r{number}", prompt_token_ids=prompt, sampling=SamplingParams(seed=0)))
    entry.seq_id = number + 1
    add_sequence(core, entry.seq_id, sequence_fields(entry.request, ()))
    traffic.start(entry)
    return entry


def test_what_is_fetched_waits_while_many_loads_are_queued(busy: Busy) -> None:
    core = Scheduler(num_blocks=2000, block_size=16, max_model_len=400, max_seqs=MANY, seal_tokens=GRAIN)
    connector: Any = Fetched(busy.device)
    traffic = KVTraffic(connector, core, None, lambda: None)
    entries = [begun(traffic, core, number) for number in range(MANY)]
    traffic.poll()
    assert len(connector.loads) == MOST_LOADS
    traffic.cancel(entries[-1])  # it waits no more
    busy.end_step()
    for turn in range(2, MANY // MOST_LOADS + 2):
        traffic.poll()
        assert len(connector.loads) == min(turn * MOST_LOADS, MANY - 1)
        busy.end_step()
    assert not traffic.load_failed(0)
    assert not connector.disabled


class CopyingWorker(FakeWorker):
    """Its copies go through a device's queue; ``refuses``: or find it full."""

    def __init__(self, device: DeviceThread) -> None:
        super().__init__()
        self.device, self.refuses, self.copies = device, False, 0

    def write_blocks(self, *_: Any) -> Any:
        if self.refuses:
            raise WorkerError("the device is stuck")
        self.copies += 1
        return self.device.launch(lambda: None)

    def read_blocks(self, *_: Any) -> Any:
        return self.write_blocks()


class Pair:
    """Engines that hand over through a port with room for all; copies of both go through one device's queue."""

    def __init__(self, device: DeviceThread) -> None:
        self.port = LocalHandOff(capacity=MANY)
        self.workers = CopyingWorker(device), CopyingWorker(device)
        relays = Giver(self.port, self.workers[0]), Taker(self.port, self.workers[1])
        self.prompt, self.completion = (self._engine(i, relays[i]) for i in range(2))
        self.ends: dict[str, Any] = {}

    def _engine(self, which: int, relay: Any) -> Engine:
        config = RoleConfig(("prompt", "completion")[which])
        settings = {"num_blocks": 2000, "block_size": 4, "max_model_len": 40, "token_budget": 512, "max_seqs": MANY}
        core = Scheduler(**settings, **core_settings(config))
        return Engine(core, self.workers[which], cadence=make_cadence(config), overlap=config.overlap, relay=relay)

    def ask(self, count: int) -> None:
        for i in range(count):
            request = Request(
                request_id=f"r{i}", prompt_token_ids=[i, 2], sampling=SamplingParams(max_tokens=3, seed=0)
            )
            self.prompt.submit(request)

    def tick(self, engine: Engine, turns: int = 1) -> None:
        for _ in range(turns):
            self.ends |= {delta.request_id: delta for delta in engine.tick() if delta.finish_reason}


def test_hand_overs_wait_while_many_copies_are_queued(busy: Busy) -> None:
    both = Pair(busy.device)
    both.ask(MANY)
    for engine, worker in ((both.prompt, both.workers[0]), (both.completion, both.workers[1])):
        both.tick(engine, 5)
        assert worker.copies == MOST_COPIES
        for turn in range(2, MANY // MOST_COPIES + 2):
            busy.end_step()
            busy.gate.clear()
            busy.device.launch(lambda: busy.gate.wait(60))
            both.tick(engine)
            assert worker.copies == min(turn * MOST_COPIES, MANY)
    busy.end_step()
    both.tick(both.completion, 8)
    assert [end.finish_reason for end in both.ends.values()] == ["length"] * MANY


@pytest.mark.parametrize("which", [0, 1])
def test_a_copy_that_the_device_refuses_costs_its_own_request(busy: Busy, which: int) -> None:
    both = Pair(busy.device)
    both.ask(2)
    both.workers[which].refuses = True
    if which == 0:  # over there a copy waits for its content, which is an error now
        both.workers[1].write_blocks = lambda _, content, __: content  # type: ignore[method-assign]
    both.tick(both.prompt, 3)
    both.tick(both.completion, 3)
    errors = {end.error for end in both.ends.values()}
    assert (len(both.ends), errors) == (2, {"its KV could not be taken over: the device is stuck"})
