"""EmbeddingProcess: an encoder in a process of its own, so that the server never imports torch and never computes."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import time
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from pathlib import Path

from headrace.contract.errors import EngineDead
from headrace.engine.orphans import born_deaf, end_with, leave_signals_to_the_front

from .embedder import Encoder, EncoderInputs, encoder_folder

LOAD_S = 600.0  # reading a large encoder from a cold disk
CLOSE_S = 5.0  # for what is under way; a child that is stopped would be waited for, for ever

log = logging.getLogger("headrace.serve")


def _begin(parent: int) -> None:
    """The child, before anything else."""
    leave_signals_to_the_front()
    end_with(parent)


@lru_cache(maxsize=1)
def _encoder(folder: Path, num_threads: int) -> Encoder:
    """The child's one encoder, loaded when it is first asked for."""
    return Encoder(folder, num_threads=num_threads)


def _vectors(folder: Path, num_threads: int, texts: list[list[int]]) -> list[list[float]]:
    return _encoder(folder, num_threads).vectors(texts)


class EmbeddingProcess:
    """When the process dies, or hangs, its requests fail and another one is started. Used on one event loop.

    Raises ModelError, PullError on making; the weights are read by the first request, or by ``load``.
    """

    def __init__(self, model: str, num_threads: int = 1, offline: bool = False) -> None:
        self._folder = encoder_folder(model, offline)
        self._num_threads = num_threads
        self.inputs = EncoderInputs(self._folder)
        self._leaving = False
        self._answers = 0  # that came; of all processes so far
        self._loaded: Future[list[list[float]]] | None = None
        self._load_by_s = 0.0
        self._pool = self._start()

    def _start(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")  # a fork would copy threads and sockets
        return ProcessPoolExecutor(1, context, initializer=_begin, initargs=(os.getpid(),))

    def leave(self) -> None:
        """The server is about to end: a process that dies from now on has no successor."""
        self._leaving = True

    def load(self) -> None:
        """Waits until the weights are there. Raises what is wrong with them."""
        self._begin_loading().result()

    def _begin_loading(self) -> Future[list[list[float]]]:
        self._load_by_s = time.monotonic() + LOAD_S
        with born_deaf():  # the pool starts its process with the first call
            self._loaded = self._pool.submit(_vectors, self._folder, self._num_threads, [])
        self._loaded.add_done_callback(self._answered)
        return self._loaded

    def _answered(self, call: Future[list[list[float]]]) -> None:
        self._answers += not call.cancelled() and not isinstance(call.exception(), BrokenProcessPool)

    async def vectors(self, texts: list[list[int]], timeout_s: float = 120.0) -> list[list[float]]:
        """Raises EngineDead when the process died or took too long."""
        if self._loaded is None:
            self._begin_loading()
        pool, answers = self._pool, self._answers
        try:
            call = pool.submit(_vectors, self._folder, self._num_threads, texts)
            call.add_done_callback(self._answered)
            async with asyncio.timeout(timeout_s):
                return await asyncio.wrap_future(call)
        except BrokenProcessPool:
            if self._leaving:
                raise EngineDead("the server is stopping") from None
            if pool is self._pool:
                self._replace()
            raise EngineDead("the encoder's process died; it is being started again") from None
        except TimeoutError:
            if pool is self._pool and self._answers == answers and not self._loading:  # not only behind others
                self._end(pool)
            raise EngineDead(f"the encoder did not answer within {timeout_s:g} s") from None

    @property
    def _loading(self) -> bool:
        """It reads its weights, and may still do so: others wait behind that."""
        return self._loaded is not None and not self._loaded.done() and time.monotonic() < self._load_by_s

    def _end(self, pool: ProcessPoolExecutor) -> None:
        """A process that has answered nothing for so long hangs: who waits for it is told that it died."""
        log.error("the encoder hangs; it is ended")
        for process in list((pool._processes or {}).values()):
            process.kill()
        if not self._leaving:
            self._replace()

    def _replace(self) -> None:
        """Loads at once: the next request need not wait for it."""
        log.error("the encoder died; starting it again")
        self._pool = self._start()
        self._begin_loading().add_done_callback(self._tell)

    def _tell(self, loaded: Future[list[list[float]]]) -> None:
        if loaded.cancelled() or self._leaving:
            return
        if (error := loaded.exception()) is None:
            log.warning("the encoder is back")
        else:
            log.error("the encoder did not come back: %s", error)

    def close(self) -> None:
        """What waits is dropped; what is under way has ``CLOSE_S``."""
        self._leaving = True
        processes = list(self._pool._processes.values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.join(CLOSE_S)
            if process.is_alive():
                process.kill()
