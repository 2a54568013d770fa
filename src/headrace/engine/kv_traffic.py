"""KVTraffic: between the loop, the scheduler and a KV store. What a sequence may load is asked before it may run, what
has become final is saved after its step.

A waiting sequence keeps its place in the queue while its KV is fetched (it is not ready). Nothing is promised that is
not in memory and checked. Used by the loop's thread only; with no connector every call does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from headrace._core import Scheduler
from headrace.contract.errors import reason
from headrace.contract.picture import with_pictures
from headrace.contract.ports import KVConnector, KVSession, StepObserver
from headrace.contract.request import Request

from .book import Book, Entry

MOST_LOADS = 16  # queued on the device and not done: its queue is bounded, and the steps themselves go through it


def open_session(
    connector: KVConnector,
    core: Scheduler,
    seq_id: int,
    request: Request,
    wake: Callable[[], None],
    broken: bool = False,
) -> KVSession:
    """Asks a store for a sequence that waits in the core. ``broken``: what the pool names may not have been written."""
    reads = request.sampling.prompt_logprobs is None and not broken
    return connector.open(
        request.prompt_token_ids,
        with_pictures(request.cache_salt, request.pictures),
        request.adapter,
        core.cached_tokens(seq_id) if reads else -1,
        wake,
        request.tenant or request.cache_salt,
        request.kv_class,
    )


class KVTraffic:
    """``wake`` is called from a thread of the connector's when a fetch is over."""

    def __init__(
        self,
        connector: KVConnector | None,
        core: Scheduler,
        observer: StepObserver | None,
        wake: Callable[[], None],
    ) -> None:
        self._connector = connector
        self._core = core
        self._observer = observer
        self._wake = wake
        self._waiting: dict[int, Entry] = {}
        self._loads: list[Future[None]] = []
        self._void_through = -1
        self._broken = False  # a load failed: no other is tried

    def start(self, entry: Entry) -> None:
        """Begins a sequence that was added just now; it waits while it is not known what can come from outside."""
        if self._connector is None:
            return
        entry.kv = open_session(self._connector, self._core, entry.seq_id, entry.request, self._wake)
        count = entry.kv.num_external_tokens()
        if count is None or not self._may_import(entry.kv, count):
            self._waiting[entry.seq_id] = entry
            self._set_ready(entry, False)
        else:
            self._import(entry, count)

    def poll(self) -> None:
        """Lets those run whose fetch is over, with the blocks it fills; no more than the device has room for."""
        if not self._waiting:
            return
        for seq_id, entry in list(self._waiting.items()):
            assert entry.kv is not None
            count = entry.kv.num_external_tokens()
            if count is not None and self._may_import(entry.kv, count):
                del self._waiting[seq_id]
                self._import(entry, count)
                self._set_ready(entry, True)

    def _may_import(self, session: KVSession, count: int) -> bool:
        """Whether there is nothing to load, or room for a load."""
        if count <= session.first or self._broken:
            return True
        return sum(not load.done() for load in self._loads) < MOST_LOADS

    def _import(self, entry: Entry, count: int) -> None:
        session = entry.kv
        assert session is not None
        if count <= session.first or self._broken:
            session.cancel()
            return
        blocks = self._core.import_prefix(entry.seq_id, count, session.first)
        if self._observer:
            self._observer.imported(entry.seq_id, count, session.first)
        if not blocks:
            session.cancel()
            return
        try:
            self._loads.append(session.load(blocks))
        except Exception as error:  # the blocks have names already: whoever would hit them must not
            failed: Future[None] = Future()
            failed.set_exception(error)
            self._loads.append(failed)

    def _set_ready(self, entry: Entry, ready: bool) -> None:
        self._core.set_ready(entry.seq_id, ready)
        if self._observer:
            self._observer.readied(entry.seq_id, ready)

    def cancel(self, entry: Entry) -> None:
        """The request ends, whatever its state."""
        if self._waiting.pop(entry.seq_id, None) is not None:
            assert entry.kv is not None
            entry.kv.cancel()

    def save(self, book: Book) -> None:
        """After a commit, before those it ended leave the book: hands on what has become final."""
        if self._connector is None:
            return
        for seq_id, index, tokens, blocks in self._core.take_sealed():
            entry = book.of_seq(seq_id)
            if entry is not None and entry.kv is not None:
                entry.kv.seal(index, tokens, blocks)
        self._connector.flush()

    def load_failed(self, step: int) -> bool:
        """Whether a load broke. Then the step, and everything the cache holds, is void and is computed anew.

        The device runs in order: a step's loads are over when its result is here.
        """
        if not self._loads:
            return False
        done = [load for load in self._loads if load.done()]
        self._loads = [load for load in self._loads if not load.done()]
        error = next((e for load in done if (e := load.exception()) is not None), None)
        if error is None or self._connector is None:
            return False
        self._connector.disable(reason(error))
        self._broken = True
        self._void_through = step + self._core.num_steps_in_flight - 1
        self._core.fail(step)
        if self._observer:
            self._observer.failed(step, f"a load from the KV store failed: {error}")
        self._core.reset_prefix_cache(True)
        if self._observer:
            self._observer.cache_reset(True)
        return True

    def voided(self, step: int) -> bool:
        """Whether a step was in flight when a load failed: it may have read what was never written."""
        return step <= self._void_through

    def close(self) -> None:
        """Saves what is under way, up to a deadline."""
        if self._connector is not None:
            self._connector.close()
