"""The server around the routes: names, limits, keep-alive, crossing origins, metrics."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from served import LONG, Running, Script, held, running, scripted_llm, until

from headrace.api.http.app import AppSettings
from headrace.api.http.host import HostLimits
from headrace.api.http.hosted_generation import HostedGeneration
from headrace.api.tenants.registry import Registry, Tenant, hash_key
from headrace.api.tenants.tenancy import Tenancy
from headrace.api.tenants.usage import UsageBook
from headrace.obs.metrics import TABLE, Kind

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
JSON = {"content-type": "application/json"}


def test_a_model_answers_to_all_its_names_and_to_no_other(script: Script) -> None:
    with running(lambda: scripted_llm(script), names=["first", "org/second"]) as server:
        assert [m["id"] for m in server.http.get("/v1/models").json()["data"]] == ["first", "org/second"]
        assert server.http.get("/v1/models/org/second").json()["id"] == "org/second"
        for name in ("first", "org/second"):
            assert server.complete("x", model=name, max_tokens=1).json()["model"] == "first"
        for response in (server.complete("x", model="third"), server.http.get("/v1/models/third")):
            assert response.status_code == 404
            assert response.json()["error"]["code"] == "model_not_found"
            assert response.json()["error"]["param"] == "model"
        assert server.requests[-1].request_id  # the refused ones never reached the engine
        assert len(server.requests) == 2


def test_both_kinds_of_clients_read_the_models(script: Script) -> None:
    with running(lambda: scripted_llm(script), names=["first", "second"]) as server:
        told = server.http.get("/v1/models").json()
        card = server.http.get("/v1/models/second").json()
        assert server.http.get("/v1/models/").json() == told
    assert told["data"][1] == card
    assert (card["object"], card["type"], card["display_name"]) == ("model", "model", "second")
    assert datetime.fromisoformat(card["created_at"]).timestamp() == card["created"]
    assert (told["object"], told["has_more"], told["first_id"], told["last_id"]) == ("list", False, "first", "second")


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", CHAT),
        ("/messages", "/v1/messages"),
        ("/models", "/v1/models"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/v1/v1/models", "/v1/models"),
        ("/v1/nothing", None),
        ("/nothing", None),
    ],
)
def test_a_base_url_that_is_nearly_right_is_told_which_is(scripted: Running, path: str, meant: str | None) -> None:
    answer = scripted.post(path, {})
    assert answer.status_code == 404
    told = answer.json()["error"]["message"]
    assert (f"; {meant} is one" in told) if meant else told == f"there is no route {path}"


def test_who_only_looks_gets_no_body(scripted: Running) -> None:
    for path in ("/health", "/ready", "/"):
        answer = scripted.http.head(path)
        assert (answer.status_code, answer.content) == (200, b"")


def test_small_routes(scripted: Running) -> None:
    assert scripted.http.get("/health").json() == {"status": "ok"}
    assert scripted.http.get("/ready").status_code == 200
    assert set(scripted.http.get("/version").json()) == {"version"}
    ids = scripted.post("/tokenize", {"prompt": "Hé", "return_token_strs": True}).json()
    assert (ids["count"], len(ids["token_strs"])) == (3, 3)
    assert scripted.post("/detokenize", {"tokens": ids["tokens"]}).json() == {"prompt": "Hé"}
    assert scripted.post("/detokenize", {"tokens": [-1]}).status_code == 400
    assert scripted.post("/tokenize", {}).status_code == 400
    told = scripted.http.get("/tokenizer_info").json()
    assert (told["eos_token"], told["bos_token"]) == ("<|end|>", None)
    assert "<|user|>" in told["chat_template"]


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", CHAT, 405)])
def test_what_does_not_exist_is_refused_in_the_same_shape(
    scripted: Running, method: str, path: str, status: int
) -> None:
    response = scripted.http.request(method, path)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", ["/health", "/", "/v1/models"])
def test_head_is_get_without_a_body(scripted: Running, path: str) -> None:
    response = scripted.http.head(path)
    assert (response.status_code, response.content) == (200, b"")
    assert int(response.headers["content-length"]) == len(scripted.http.get(path).content)


def test_a_wrong_method_is_told_the_right_ones(scripted: Running) -> None:
    refused = scripted.http.get(CHAT)
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    assert set(scripted.http.post("/health").headers["allow"].split(", ")) == {"GET", "HEAD"}


@pytest.mark.parametrize(
    ("prompt", "param"), [([99999999], "prompt"), ([[1], [99999999]], "prompt[1]"), (["a", "b" * 99999], "prompt[1]")]
)
def test_a_bad_prompt_is_called_by_the_bodys_name(scripted: Running, prompt: Any, param: str) -> None:
    refused = scripted.complete(prompt)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert refused.json()["error"]["message"].startswith(f"{param}: ")


@pytest.mark.parametrize(
    ("headers", "content", "status"),
    [
        ({"content-type": "text/plain"}, b"{}", 415),
        ({}, b"{}", 415),
        (JSON, b"{", 400),
        (JSON, b"", 400),
        (JSON, b"[]", 400),
        (JSON, b'{"prompt": "\\ud800"}', 400),
        (JSON, b'\xff{"prompt": "x"}', 400),
        (JSON, b'{"prompt": "\xff"}', 400),
        (JSON, b'{"prompt": "' + b"x" * (1 << 21) + b'"}', 413),
    ],
)
def test_bodies_that_are_none(script: Script, headers: Any, content: bytes, status: int) -> None:
    with running(lambda: scripted_llm(script), limits=HostLimits(max_body_bytes=1 << 20)) as server:
        response = server.http.post(TEXT, content=content, headers=headers)
        assert response.status_code == status
        assert response.json()["error"]["message"]
        chunks = iter([content])  # without a length, counted as it comes
        assert server.http.post(TEXT, content=chunks, headers=headers).status_code == status


def test_a_full_queue_refuses_before_any_work_and_says_when_to_come_back(script: Script) -> None:
    with running(lambda: scripted_llm(held(script)), limits=HostLimits(max_open=2)) as server:
        bare = [server.send_raw(TEXT, {"prompt": "x", "max_tokens": LONG}) for _ in range(2)]
        until(lambda: server.host.num_open == 2, "the queue does not fill")
        response = server.http.post(TEXT, content=b"not even read", headers=JSON)
        assert response.status_code == 429
        assert response.headers["retry-after"] == "1"
        assert response.json()["error"]["code"] == "queue_full"
        for one in bare:
            one.close()
        until(lambda: server.host.num_open == 0, "the places do not come back")
        assert server.complete("x", n=2, max_tokens=1).status_code == 200
        server.settled()
        assert server.complete("x", n=3, max_tokens=1).status_code == 400  # could never fit


def test_silence_is_filled_with_comments_that_clients_skip(script: Script) -> None:
    still = held(script, step_s=None)
    assert still.hold is not None
    lines: list[str] = []
    with running(lambda: scripted_llm(still), limits=HostLimits(keep_alive_s=0.05)) as server:
        body = {"prompt": "x", "max_tokens": 2, "stream": True}
        with server.http.stream("POST", TEXT, json=body) as response:
            for line in response.iter_lines():
                lines += [line] if line else []
                if lines.count(": keep-alive") == 2:
                    still.hold.release()
        assert all(line.startswith(("data: ", ": keep-alive")) for line in lines)
        assert lines[-1] == "data: [DONE]"


PAGE = "https://page.example"


def readable(response: httpx.Response) -> set[str]:
    """Headers that a page of the origin PAGE may read of this answer, beside those that every page may."""
    assert response.headers["access-control-allow-origin"] == PAGE
    return {name.strip().lower() for name in response.headers["access-control-expose-headers"].split(",")}


def test_other_origins_may_call_only_when_told_so(script: Script) -> None:
    asks = {"origin": PAGE, "access-control-request-method": "POST"}
    body = {"prompt": "x", "max_tokens": 1}
    with running(lambda: scripted_llm(script)) as server:
        assert "access-control-allow-origin" not in server.http.options(TEXT, headers=asks).headers
    with running(lambda: scripted_llm(script), settings=AppSettings([PAGE])) as server:
        assert server.http.options(TEXT, headers=asks).headers["access-control-allow-origin"] == PAGE
        stranger = {**asks, "origin": "https://other.example"}
        assert "access-control-allow-origin" not in server.http.options(TEXT, headers=stranger).headers
        assert "access-control-allow-origin" not in server.http.post(TEXT, json=body, headers=stranger).headers
        for stream in (False, True):
            answer = server.http.post(TEXT, json={**body, "stream": stream}, headers=asks)
            assert answer.status_code == 200
            assert "x-request-id" in readable(answer) & set(answer.headers)
        assert readable(server.http.post(TEXT, json={}, headers=asks))


def test_a_page_may_read_refusals_and_failures(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    tenancy = Tenancy(Registry([Tenant(name="a", key_sha256=hash_key("key"), requests_per_min=1)]), UsageBook(None))
    asks, key = {"origin": PAGE}, {"origin": PAGE, "x-api-key": "key"}
    with running(lambda: scripted_llm(script), settings=AppSettings([PAGE]), tenancy=tenancy) as server:
        preflight = {**asks, "access-control-request-method": "POST", "access-control-request-headers": "x-api-key"}
        assert server.http.options(TEXT, headers=preflight).status_code == 200  # asks without a key
        answers = [server.http.post(TEXT, json={"prompt": "x"}, headers=headers) for headers in (asks, key, key)]
        assert [answer.status_code for answer in answers] == [401, 200, 429]
        assert all(readable(answer) for answer in answers)
        assert "retry-after" in readable(answers[2]) & set(answers[2].headers)
        monkeypatch.setattr(server.host, "check_model", lambda _name: 1 / 0)
        failed = server.http.get("/v1/models/any", headers=key)
        assert (failed.status_code, failed.json()["error"]["code"]) == (500, "internal_error")
        assert readable(failed)
        counted = families(server)["headrace_http_responses"]
        assert value(counted, "_total", route="/v1/models/{name:path}", status="500") == 1


def test_many_streams_and_their_bad_neighbours(script: Script) -> None:
    """Streams, drops and refusals at once: the well-behaved notice nothing, and all memory comes back."""
    with running(lambda: scripted_llm(held(script))) as server:
        alone = server.complete("x", max_tokens=40).json()["choices"][0]["text"]
        bare = [server.send_raw(TEXT, {"prompt": "x", "max_tokens": LONG, "stream": i % 2 == 0}) for i in range(12)]
        for i in range(6):
            events = server.stream(TEXT, {"prompt": "x", "max_tokens": 40})
            assert "".join(c["text"] for e in events for c in e["choices"]) == alone
            assert server.complete("", max_tokens=i).status_code == 400
            bare[i].close()
        for one in bare[6:]:
            one.close()
        until(lambda: server.engine.stats.used_blocks == 0, "blocks were left behind")
        until(lambda: server.host.num_open == 0, "requests were left open")


def families(server: Running) -> dict[str, Any]:
    page = server.http.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    return {family.name: family for family in text_string_to_metric_families(page.text)}


def value(family: Any, suffix: str = "", **labels: str) -> float:
    for sample in family.samples:
        if sample.name.endswith(suffix) and labels.items() <= sample.labels.items():
            return float(sample.value)
    raise AssertionError(f"no sample {suffix} {labels} in {family.name}")


def test_every_metric_of_the_table_is_on_the_page_and_aliases_only_on_request(script: Script) -> None:
    with running(lambda: scripted_llm(script)) as server:
        assert set(families(server)) == {f"headrace_{metric.name}" for metric in TABLE}
    with running(lambda: scripted_llm(script), settings=AppSettings(vllm_metrics=True)) as server:
        server.complete("x", max_tokens=3)
        server.settled()
        found = families(server)
        assert set(found) > {f"headrace_{metric.name}" for metric in TABLE}  # the names themselves: test_vllm_names.py
        assert value(found["vllm:generation_tokens"], "_total", model_name="tiny") == 3
        assert value(found["vllm:request_success"], "_total", finished_reason="length") == 1


def test_metrics_count_what_happened(script: Script) -> None:
    with running(lambda: scripted_llm(script)) as server:
        server.complete("abc", max_tokens=5, n=2)
        server.stream(CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4})
        server.complete("")
        server.settled()
        found = families(server)
    assert value(found["headrace_generation_tokens"], "_total") == 14
    assert value(found["headrace_prompt_tokens"], "_total") == 3 + 4
    assert value(found["headrace_requests"], "_total", finished_reason="length") == 3
    assert value(found["headrace_time_to_first_token_seconds"], "_count") == 3
    assert value(found["headrace_inter_token_latency_seconds"], "_count") == 11
    assert value(found["headrace_http_responses"], "_total", route=TEXT, status="400") == 1
    assert value(found["headrace_sampled_tokens"], "_total") >= 14
    assert value(found["headrace_engine_up"]) == 1
    assert value(found["headrace_open_sequences"]) == 0
    assert value(found["headrace_kv_cache_blocks"]) == 3999  # one of them is the null block


def test_names_of_the_table_are_metric_names_and_unique() -> None:
    names = [metric.name for metric in TABLE]
    assert len(names) == len(set(names))
    for metric in TABLE:
        assert metric.name.replace("_", "a").isalpha(), metric.name
        assert metric.help.endswith(".")
        assert (metric.kind is Kind.HISTOGRAM) == bool(metric.buckets)


def test_extensions_reach_the_engine(scripted: Running) -> None:
    fields = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2, "ignore_eos": True, "min_tokens": 2, "seed": 7}
    plain = {"priority": 3, "cache_salt": "mine", "max_tokens": 4}
    assert scripted.complete("x", **fields, **plain, stop_token_ids=[1]).status_code == 200
    request = scripted.requests[-1]
    assert {name: getattr(request.sampling, name) for name in fields} == fields
    assert (request.priority, request.cache_salt, request.sampling.max_tokens) == (3, "mine", 4)
    assert request.sampling.stop_token_ids == [1]
    assert scripted.chat("x", max_completion_tokens=3, max_tokens=9).json()["usage"]["completion_tokens"] == 3


def test_token_ids_are_told_on_request(scripted: Running) -> None:
    answer = scripted.chat("x", max_tokens=3, return_token_ids=True).json()
    assert len(answer["choices"][0]["token_ids"]) == 3
    assert answer["prompt_token_ids"] == scripted.requests[-1].prompt_token_ids
    assert "token_ids" not in scripted.chat("x", max_tokens=3).json()["choices"][0]


def test_several_prompts_are_answered_in_order_with_indices(scripted: Running) -> None:
    prompts = ["stop-whole", "lone-bytes"]
    answer = scripted.complete(prompts, n=2, max_tokens=3).json()
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [(0, "abc"), (1, "abc"), (2, "�A"), (3, "�A")]
    echoed = scripted.complete(["ab", "cd"], echo=True, max_tokens=1).json()["choices"]
    assert [c["text"] for c in echoed] == ["abl", "cdl"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": [{"name": "f"}], "tools": [{"type": "function", "function": {"name": "f"}}]}, "functions"),
        ({"functions": [{"name": 5}]}, "functions[0].name"),
        ({"functions": [{"name": "f", "input_schema": {}}]}, "functions[0].input_schema"),
        ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call"),
        ({"functions": [{"name": "f"}], "function_call": "required"}, "function_call"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, None),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ],
)
def test_what_chat_cannot_honour_is_refused_by_name(scripted: Running, fields: Any, param: str | None) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], **fields}
    response = scripted.post(CHAT, body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == (param or "messages[0].content[0]")


def test_chat_logprobs_whole_and_streamed_agree(tiny: Running) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "temperature": 0}
    body |= {"logprobs": True, "top_logprobs": 3}
    whole = tiny.post(CHAT, body).json()["choices"][0]["logprobs"]["content"]
    events = tiny.stream(CHAT, body)
    streamed = [t for e in events for c in e["choices"] if c["logprobs"] for t in c["logprobs"]["content"]]
    assert streamed == whole
    assert len(whole) == 5
    assert all(len(token["top_logprobs"]) == 3 for token in whole)
    assert all(token["top_logprobs"][0]["token"] == token["token"] for token in whole)
    plain = tiny.post(CHAT, {**body, "top_logprobs": 0}).json()["choices"][0]["logprobs"]["content"]
    assert [t["logprob"] for t in plain] == [t["logprob"] for t in whole]
    assert all(t["top_logprobs"] == [] for t in plain)


def test_a_stream_keeps_no_logprobs(tiny: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    close = HostedGeneration.close

    def seen(self: HostedGeneration) -> None:
        kept.append(sum(len(choice.logprobs or ()) for output in self.outputs for choice in output.outputs))
        close(self)

    until(lambda: tiny.host.num_open == 0, "an earlier request stays open")
    monkeypatch.setattr(HostedGeneration, "close", seen)
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "ignore_eos": True, "logprobs": True}
    tiny.post(CHAT, body)
    tiny.stream(CHAT, body)
    until(lambda: len(kept) == 2, "a request is not closed")
    assert kept == [5, 0]


def test_prompt_logprobs_as_an_extension(tiny: Running) -> None:
    [choice] = tiny.complete("abc", prompt_logprobs=1, max_tokens=1).json()["choices"]
    assert choice["text"].count("abc") == 0
    assert choice["prompt_logprobs"][0] is None
    assert len(choice["prompt_logprobs"]) == 3


def test_requests_have_ids_that_clients_see(scripted: Running) -> None:
    one, two = scripted.complete("x", max_tokens=1), scripted.complete("x", max_tokens=1)
    assert one.headers["x-request-id"] == one.json()["id"] != two.json()["id"]
    assert abs(one.json()["created"] - time.time()) < 60
    assert json.loads(one.text)["object"] == "text_completion"


def test_what_a_refusal_quotes_is_cut(scripted: Running) -> None:
    long = "x" * 100_000
    for response in (scripted.complete("x", model=long), scripted.complete("x", **{long: 1})):
        assert response.status_code in (400, 404)
        assert len(response.text) < 3000
