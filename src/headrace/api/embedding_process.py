"""EmbeddingProcess: an encoder in a process of its own, so that the server never imports torch and never computes."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache, partial
from pathlib import Path

from headrace.contract.errors import EngineDead
from headrace.engine.orphans import end_with, leave_signals_to_the_front

from .embedder import Encoder, EncoderInputs, encoder_folder

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
    """When the process dies, its requests fail and another one is started. Used on one event loop.

    Raises ModelError, PullError on making; the weights are read by the first request, or by ``load``.
    """

    def __init__(self, model: str, num_threads: int = 1, offline: bool = False) -> None:
        self._folder = encoder_folder(model, offline)
        self._num_threads = num_threads
        self.inputs = EncoderInputs(self._folder)
        self._leaving = False
        self._pool = self._start()

    def _start(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")  # a fork would copy threads and sockets
        return ProcessPoolExecutor(1, context, initializer=_begin, initargs=(os.getpid(),))

    def leave(self) -> None:
        """The server is about to end: a process that dies from now on has no successor."""
        self._leaving = True

    def load(self) -> None:
        """Waits until the weights are there. Raises what is wrong with them."""
        self._pool.submit(_vectors, self._folder, self._num_threads, []).result()

    async def vectors(self, texts: list[list[int]], timeout_s: float = 120.0) -> list[list[float]]:
        """Raises EngineDead when the process died or took too long."""
        pool = self._pool
        call = partial(_vectors, self._folder, self._num_threads, texts)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.get_running_loop().run_in_executor(pool, call)
        except BrokenProcessPool:
            if self._leaving:
                raise EngineDead("the server is stopping") from None
            if pool is self._pool:
                self._replace()
            raise EngineDead("the encoder's process died; it is being started again") from None
        except TimeoutError:
            raise EngineDead(f"the encoder did not answer within {timeout_s:g} s") from None

    def _replace(self) -> None:
        """Loads at once: the next request need not wait for it."""
        log.error("the encoder died; starting it again")
        self._pool = self._start()
        self._pool.submit(_vectors, self._folder, self._num_threads, []).add_done_callback(self._tell)

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
