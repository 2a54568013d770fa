"""A prompt engine and a completion engine in processes of their own, as one EngineClient.

A request goes to the prompt engine; its first token comes from there, the others from the completion engine, to which
the prompt engine hands it directly. When the prompt engine dies, what it had ends with an error, what had been handed
over goes on, and another one is started. When the completion engine dies, every open request ends with the reason.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from headrace.contract.errors import EngineDead, reason
from headrace.contract.request import Request
from headrace.contract.result import TokenDelta
from headrace.contract.stats import EngineStats, total_stats

from .client import DeltaSink
from .hand_over import LOST_WORDS
from .messages import Builder
from .process import ProcessClient
from .profiling import profile_each
from .starting import Flag, start_together
from .succession import Succession

log = logging.getLogger(__name__)

ROLES = ("prompt", "completion")
MOST_REVIVALS = 3  # in a row, without a request that got through in between


Starter = Callable[[int, Flag, Callable[[str], None]], ProcessClient]
"""(which, give_up, on_dead), as ProcessClient has them."""


def children(build: Builder, arguments: Sequence[Any], leftovers: Sequence[str] = ()) -> Starter:
    """Starts engines in child processes, each from its argument; ``leftovers`` as ProcessClient has them."""
    return lambda which, give_up, on_dead: ProcessClient(
        build, arguments[which], give_up=give_up, on_dead=on_dead, leftovers=leftovers
    )


class _Way:
    """One request's way: the first token first, whichever socket is quicker."""

    def __init__(self, request: Request, sink: DeltaSink) -> None:
        self.lock = threading.Lock()
        self.request, self.sink = request, sink
        self.first: list[int] = []  # tokens that came from the prompt engine
        self.told = self.over = self.lost = False
        self.held: list[TokenDelta] = []

    def deliver(self, delta: TokenDelta) -> None:
        """With the lock held. Nothing follows a last delta."""
        if not self.over:
            self.over = delta.finish_reason is not None
            self.sink(delta)


class ProcessPair:
    """``start`` starts, or finds, the prompt engine (0) or the completion engine (1). Thread-safe.

    Raises EngineDead, naming the engine, when one does not start, or when ``give_up`` is set before both have.
    """

    def __init__(self, start: Starter, give_up: Flag | None = None) -> None:
        self._starter = start
        self._lock = threading.Lock()
        self._ways: dict[str, _Way] = {}
        self._dead: str | None = None
        self._closing = threading.Event()
        self._revivals = 0
        self._reviver: threading.Thread | None = None
        self.on_close: Callable[[], None] = lambda: None
        self._started = False
        self._prompts = Succession()
        self._prompt, self._completion = start_together([partial(self._start, which) for which in range(2)], give_up)
        self._started = True
        self.infos = self._prompt.info, self._completion.info
        if (why := self._prompt.dead or self._completion.dead) is not None:  # one died while the other was starting
            self.close()
            raise EngineDead(why)

    # -- starting -------------------------------------------------------------------------------------------------

    def _start(self, which: int, give_up: Flag) -> ProcessClient:
        try:
            return self._starter(which, give_up, (self._prompt_died, self._completion_died)[which])
        except EngineDead as error:
            raise type(error)(f"the {ROLES[which]} engine: {error}") from error

    # -- doors ----------------------------------------------------------------------------------------------------

    def submit(self, request: Request, sink: DeltaSink) -> None:
        """Raises InvalidRequest or EngineDead before anything is queued."""
        if self._dead is not None or self._closing.is_set():
            raise EngineDead(self._dead or "the client was closed")
        name, way, prompt = request.request_id, _Way(request, sink), self._prompt
        with self._lock:
            self._ways[name] = way
        try:
            self._completion.listen(name, lambda delta: self._from_completion(way, delta))
            prompt.submit(request, lambda delta: self._from_prompt(way, prompt, delta))
        except Exception:
            with way.lock:
                way.over = True
            self._forget(name)
            if prompt.dead is not None and self._dead is None:
                words = f"the prompt engine: {prompt.dead}; another one is being started: try again"
                raise EngineDead(words) from None
            raise

    def abort(self, request_id: str) -> None:
        for engine in self._engines:
            engine.abort(request_id)

    def stop(self, request_id: str) -> None:
        for engine in self._engines:
            engine.stop(request_id)

    # -- news -----------------------------------------------------------------------------------------------------

    def _from_prompt(self, way: _Way, prompt: ProcessClient, delta: TokenDelta) -> None:
        with way.lock:
            if prompt.dead is not None and delta.finish_reason is not None:
                if way.over:  # its last delta is being delivered
                    return
                if way.told:  # it may have been handed over: only its taker knows
                    way.lost = True
                    self._completion.lose(way.request, tuple(way.first))
                    return
                self._completion.abort(delta.request_id)
                delta = _of(delta, "prompt")
            way.deliver(delta)
            way.first += delta.token_ids
            if delta.token_ids and not way.told:
                way.told, held, way.held = True, way.held, []
                self._revivals = 0
                for later in held:
                    way.deliver(later)
            over = way.over
        if over:
            self._forget(delta.request_id)

    def _from_completion(self, way: _Way, delta: TokenDelta) -> None:
        with way.lock:
            if not way.told and self._completion.dead is None and delta.error != LOST_WORDS:
                way.held.append(delta)
                return
            way.deliver(delta if self._completion.dead is None else _of(delta, "completion"))
            over = way.over
        if over and way.lost:  # it had ended there when it was given up for lost: then it has begun again for nobody
            self._completion.abort(delta.request_id)
        if over:
            self._forget(delta.request_id)

    def _forget(self, name: str) -> None:
        with self._lock:
            self._ways.pop(name, None)
        for engine in self._engines:
            engine.forget(name)

    # -- deaths ---------------------------------------------------------------------------------------------------

    def _completion_died(self, why: str) -> None:
        """Every open request has been told; the prompt engine need not go on with them."""
        self._dead = f"the completion engine: {why}"
        if self._started:
            self._prompt.kill(self._dead)

    def _prompt_died(self, why: str) -> None:
        """Another one takes its place, unless it keeps dying."""
        if self._dead is not None or self._closing.is_set() or not self._started:
            return
        self._revivals += 1
        if self._revivals > MOST_REVIVALS:
            self._dead = f"the prompt engine: {why}"
            self._completion.kill(self._dead)
            return
        log.error("the prompt engine: %s; starting another", why)
        reviver = threading.Thread(target=self._revive, name="headrace-revive", daemon=True)
        reviver.start()
        self._reviver = reviver  # only now: ``close`` joins it, and may come this moment

    def _revive(self) -> None:
        dead = self._prompt
        try:
            prompt = self._start(0, self._closing)
        except Exception as error:  # whatever it is, nobody else would notice
            self._prompt_died(reason(error))
            return
        with self._lock:
            self._prompt = prompt
        dead.close()

    # -- state ----------------------------------------------------------------------------------------------------

    @property
    def _engines(self) -> tuple[ProcessClient, ProcessClient]:
        with self._lock:
            return self._prompt, self._completion

    @property
    def gone(self) -> str | None:
        """Why it is gone though nobody closed it."""
        why = self._completion.gone
        return self._dead or (None if why is None else f"the completion engine: {why}")

    @property
    def alive(self) -> bool:
        """While the prompt engine starts again, requests are refused, but what was handed over goes on."""
        return self._dead is None and not self._closing.is_set() and self._completion.alive

    @property
    def ready(self) -> bool:
        return self.alive and self._engines[0].alive

    @property
    def stats(self) -> EngineStats:
        """The sum over both; empty when they are gone."""
        return total_stats(self.rank_stats)

    @property
    def rank_stats(self) -> list[EngineStats]:
        """The prompt engine's, with the counts of those before it, and the completion engine's."""
        prompt, completion = self._engines
        return [self._prompts.stats(prompt), completion.stats] if self.alive else []

    @property
    def pids(self) -> tuple[int | None, int | None]:
        return self._prompt.pid, self._completion.pid

    def profile(self, seconds: float) -> dict[str, dict[str, int]]:
        """Both engines during the same time. Raises EngineDead."""
        return profile_each(dict(zip(ROLES, self._engines)), seconds)

    def close(self) -> None:
        """Ends open requests and both engines. Where the completion engine is gone already, they are told so."""
        if self._closing.is_set():
            return
        if (why := self.gone) is not None:
            self._prompt.kill(why)
        self._closing.set()
        if self._reviver is not None:
            self._reviver.join(10)
        for engine in self._engines:
            engine.close()
        self.on_close()


def _of(delta: TokenDelta, which: str) -> TokenDelta:
    """An end told by the front of a dead engine says which engine it was, unless it was ended for the other's sake."""
    if (delta.error or "").startswith(tuple(f"the {role} engine: " for role in ROLES)):
        return delta
    return msgspec.structs.replace(delta, error=f"the {which} engine: {delta.error}")
