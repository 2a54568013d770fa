"""EmbeddingProcess: an encoder in a process of its own, so that the server never imports torch and never computes."""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache, partial
from pathlib import Path

from headrace.contract.errors import EngineDead

from .embedder import Encoder, EncoderInputs, encoder_folder


@lru_cache(maxsize=1)
def _encoder(folder: Path, num_threads: int) -> Encoder:
    """The child's one encoder, loaded when it is first asked for."""
    return Encoder(folder, num_threads=num_threads)


def _vectors(folder: Path, num_threads: int, texts: list[list[int]]) -> list[list[float]]:
    return _encoder(folder, num_threads).vectors(texts)


class EmbeddingProcess:
    """When the process dies, its requests fail and the next one starts another. Used on one event loop.

    Raises ModelError, PullError on making; the weights are read by the first request, or by ``load``.
    """

    def __init__(self, model: str, num_threads: int = 1, offline: bool = False) -> None:
        self._folder = encoder_folder(model, offline)
        self._num_threads = num_threads
        self.inputs = EncoderInputs(self._folder)
        self._pool = self._start()

    def _start(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))  # a fork would copy threads and sockets

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
            if pool is self._pool:
                self._pool = self._start()
            raise EngineDead("the encoder's process died; it is being started again") from None
        except TimeoutError:
            raise EngineDead(f"the encoder did not answer within {timeout_s:g} s") from None

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
