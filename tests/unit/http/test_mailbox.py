"""The mailbox between the engine's thread and a request's task."""

from __future__ import annotations

import asyncio
import threading

from headrace.api.http.mailbox import Mailbox
from headrace.contract.result import TokenDelta


def delta(number: int) -> TokenDelta:
    return TokenDelta(request_id="r", token_ids=[number])


def test_silence_comes_back_empty_and_only_silence() -> None:
    async def scenario() -> None:
        box = Mailbox()
        assert await box.take(0.01) == []
        box.deliver(delta(1))
        box.deliver(delta(2))  # two wake-ups are on their way; the second finds nothing left
        assert [d.token_ids for d in await box.take(60)] == [[1], [2]]
        waiting = asyncio.create_task(box.take(60))
        await asyncio.sleep(0.02)
        assert not waiting.done(), "a wake-up for old items passed for news"
        box.deliver(delta(3))
        assert [d.token_ids for d in await waiting] == [[3]]

    asyncio.run(scenario())


def test_nothing_is_lost_or_reordered_between_threads() -> None:
    async def scenario() -> list[int]:
        box = Mailbox()
        thread = threading.Thread(target=lambda: [box.deliver(delta(i)) for i in range(5000)])
        thread.start()
        found: list[int] = []
        while len(found) < 5000:
            taken = await box.take(20)
            assert taken, "deltas were lost"
            found += [d.token_ids[0] for d in taken]
        thread.join()
        return found

    assert asyncio.run(scenario()) == list(range(5000))
