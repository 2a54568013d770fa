"""EncodingClient: an engine whose pictures are encoded elsewhere first. Text goes to the engine at once.

A request with pictures waits here for their rows, in a bounded queue, and nobody else waits with it. What the engine
then gets is what it would have computed itself, to the bit.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from headrace.contract.errors import EngineDead, InvalidRequest, QueueFull, reason
from headrace.contract.request import Request
from headrace.contract.result import TokenDelta
from headrace.contract.stats import EngineStats

from .client import DeltaSink, EngineClient, Sinks
from .encoder import Encoder
from .encoder_process import CLOSE_TIMEOUT_S

IDLE_S = 0.5
CLOSED = "the client was closed"


@dataclass(slots=True)
class _Waiting:
    request: Request
    sink: DeltaSink
    end: str | None = None  # how its caller has ended it while its pictures were encoded

    @property
    def name(self) -> str:
        return self.request.request_id


class EncodingClient:
    """An EngineClient over ``inner``; both, and the encoder, end with ``close``. Thread-safe."""

    def __init__(self, inner: EngineClient, encoder: Encoder, max_waiting: int) -> None:
        self._inner, self._encoder, self._max_waiting = inner, encoder, max_waiting
        self._sinks = Sinks()  # of those that wait here
        self._queue: deque[_Waiting] = deque()
        self._current: _Waiting | None = None
        self._news = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="headrace-encoding", daemon=True)
        self._thread.start()

    @property
    def encoder_pid(self) -> int | None:
        return self._encoder.pid

    # -- doors ----------------------------------------------------------------------------------------------------

    def submit(self, request: Request, sink: DeltaSink) -> None:
        """Raises QueueFull or EngineDead before anything is queued."""
        if request.pictures and self._closing:
            raise EngineDead(CLOSED)
        if request.pictures and not self._inner.alive:
            raise EngineDead(self._inner.gone or CLOSED)
        kept = [self._encoder.kept.find(p.id) for p in request.pictures]
        ready = _with_rows(request, kept)
        with self._news:
            if ready is None or self._holds(request.shares):  # a choice must not overtake the one it shares with
                if len(self._queue) >= self._max_waiting:
                    raise QueueFull(f"{self._max_waiting} requests wait for the encoder; try again later")
                self._sinks.add(request.request_id, sink)
                self._queue.append(_Waiting(request, sink))
                self._news.notify()
                return
        self._inner.submit(ready, sink)

    def _holds(self, name: str) -> bool:
        """With the lock held."""
        if not name:
            return False
        return any(w.name == name for w in self._queue) or (self._current is not None and self._current.name == name)

    def abort(self, request_id: str) -> None:
        if not self._ended_here(request_id, "abort"):
            self._inner.abort(request_id)

    def stop(self, request_id: str) -> None:
        if not self._ended_here(request_id, "stop"):
            self._inner.stop(request_id)

    def _ended_here(self, name: str, reason: str) -> bool:
        with self._news:
            if self._current is not None and self._current.name == name:
                self._current.end = reason
                return True
            found = next((waiting for waiting in self._queue if waiting.name == name), None)
            if found is None:
                return False
            self._queue.remove(found)
        self._sinks.deliver([TokenDelta(request_id=name, finish_reason=reason)])
        return True

    # -- the encoder's thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            waiting = self._take()
            if waiting is None:
                self._encoder.revive()
                continue
            self._serve(waiting)

    def _serve(self, waiting: _Waiting) -> None:
        rows: list[bytes | None] = []
        for picture in waiting.request.pictures:
            try:
                rows.append(self._encoder.rows(picture))
            except Exception as error:  # whatever it is, the others are still to be served
                self._fail(waiting, picture.id, reason(error))
                return
        self._pass_on(waiting, rows)

    def _take(self) -> _Waiting | None:
        with self._news:
            if not self._queue:
                self._news.wait(IDLE_S)
            if self._closing or not self._queue:
                return None
            self._current = self._queue.popleft()
            return self._current

    def _pass_on(self, waiting: _Waiting, rows: list[bytes | None]) -> None:
        """It stays the current one until the engine has it, so that no end of it is lost in between."""
        submitted = waiting.end is None and not self._closing and self._submit(waiting, rows)
        with self._news:
            self._current = None
        if waiting.end is None:
            return
        if not submitted:
            self._sinks.deliver([TokenDelta(request_id=waiting.name, finish_reason=waiting.end)])
        elif waiting.end == "stop":
            self._inner.stop(waiting.name)
        else:
            self._inner.abort(waiting.name)

    def _submit(self, waiting: _Waiting, rows: list[bytes | None]) -> bool:
        request = _with_rows(waiting.request, rows)
        assert request is not None, "every picture has its rows"
        self._sinks.drop(waiting.name)
        try:
            self._inner.submit(request, waiting.sink)
        except Exception as error:
            self._sinks.add(waiting.name, waiting.sink)
            self._tell([waiting], reason(error), error.field if isinstance(error, InvalidRequest) else None)
            return False
        return True

    def _fail(self, waiting: _Waiting, picture_id: str, why: str) -> None:
        """Whoever waits with the same picture fails too: to try it again would cost the others another process."""
        with self._news:
            self._current = None
            same = [w for w in self._queue if any(picture.id == picture_id for picture in w.request.pictures)]
            for other in same:
                self._queue.remove(other)
        self._tell([waiting, *same], why)

    def _tell(self, ended: Iterable[_Waiting], why: str, field: str | None = None) -> None:
        for waiting in ended:
            last = TokenDelta(request_id=waiting.name, finish_reason="error", error=why, error_field=field)
            self._sinks.deliver([last])

    # -- state ----------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """As the engine: an encoder that died comes back by itself."""
        return not self._closing and self._inner.alive

    @property
    def ready(self) -> bool:
        return self.alive and self._inner.ready

    @property
    def gone(self) -> str | None:
        return self._inner.gone

    @property
    def stats(self) -> EngineStats:
        return self._inner.stats

    @property
    def rank_stats(self) -> list[EngineStats]:
        ranks: list[EngineStats] = getattr(self._inner, "rank_stats", [self._inner.stats])
        return ranks

    def profile(self, seconds: float) -> dict[str, dict[str, int]]:
        return self._inner.profile(seconds)

    def close(self) -> None:
        """Ends open requests, those that wait for rows first."""
        with self._news:
            if self._closing:
                return
            self._closing = True
            self._news.notify_all()
        self._encoder.stop()
        self._thread.join(CLOSE_TIMEOUT_S)
        self._encoder.close()
        self._sinks.fail_all("the engine was closed")
        self._inner.close()


def _with_rows(request: Request, rows: list[bytes | None]) -> Request | None:
    """The request with its pictures encoded; None where one is not."""
    pictures = []
    for picture, found in zip(request.pictures, rows, strict=True):
        if found is None:
            return None
        pictures.append(msgspec.structs.replace(picture, rows=found, pixels=b""))  # nobody looks at them any more
    return msgspec.structs.replace(request, pictures=tuple(pictures)) if pictures else request
