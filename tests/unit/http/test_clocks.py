"""How long a request took is told by a clock that nobody sets: the machine's own may be set back meanwhile."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.api.http import request_log
from headrace.api.http.arrivals import Arrival


def test_times_of_a_request_follow_from_its_start() -> None:
    arrival = Arrival("r", at_ns=1000)
    first, second = arrival.now_ns(), arrival.now_ns()
    assert 1000 <= first <= second < 1000 + 3600 * 10**9  # and are not what the wall's clock says


def test_the_log_tells_no_negative_time(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    walls = iter([5000.0, 4000.0, 3000.0])
    monkeypatch.setattr(request_log, "time", SimpleNamespace(time=lambda: next(walls), monotonic=time.monotonic))

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def nothing(*_: Any) -> None: ...

    logged = request_log.RequestLog(app, ["/v1/models"])
    with caplog.at_level("INFO", "headrace.requests"):
        asyncio.run(logged({"type": "http", "path": "/v1/models"}, nothing, nothing))
    line = json.loads(caplog.records[-1].message)
    assert (line["time"], line["status"]) == (5000.0, 200)
    assert 0 <= line["seconds"] < 3600
