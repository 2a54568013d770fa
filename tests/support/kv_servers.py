"""A store's or an engine's memory's server on a thread of the test. Must never outlive it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.kv.service import Service

END_S = 60.0


@contextmanager
def on_a_thread(server: Service) -> Iterator[str]:
    """Its address, while it serves; afterwards it has ended."""
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server.address
    finally:
        server.stop()
        thread.join(END_S)
        assert not thread.is_alive()
