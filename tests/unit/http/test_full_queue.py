"""A queue that is full is nobody's fault: 429 with a time to come back, wherever it was found full."""

from __future__ import annotations

import msgspec
import pytest

from headrace.api.http.errors import as_http
from headrace.contract.errors import InvalidRequest, QueueFull, refusal
from headrace.contract.request import Request, SamplingParams
from headrace.engine.intake import Intake


def test_what_an_engine_in_another_process_tells_becomes_the_same_error() -> None:
    intake = Intake(1)
    request = Request(request_id="a", prompt_token_ids=[1], sampling=SamplingParams())
    intake.submit(request)
    with pytest.raises(QueueFull) as caught:
        intake.submit(msgspec.structs.replace(request, request_id="b"))
    told = refusal(caught.value.field, str(caught.value))  # a delta carries these two
    assert type(told) is QueueFull
    assert str(told) == str(caught.value)
    answer = as_http(told)
    assert (answer.status, answer.code, answer.headers) == (429, "queue_full", {"Retry-After": "1"})


def test_other_fields_stay_the_requests_fault() -> None:
    told = refusal("stop", "stop: too long")
    assert (type(told), str(told), as_http(told).status) == (InvalidRequest, "stop: too long", 400)
