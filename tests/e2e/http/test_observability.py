"""What operators see: dashboards that name real metrics, logs and spans without content, operations counted."""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from served import LONG, Running, Script, held, running, scripted_llm, until
from test_tenants import tenant

from headrace.api.http.app import AppSettings
from headrace.api.http.arrivals import Arrival, Finished
from headrace.api.http.host import HostLimits
from headrace.api.tenants.registry import Registry
from headrace.api.tenants.tenancy import Tenancy
from headrace.api.tenants.usage import UsageBook
from headrace.config import resolve
from headrace.contract.stats import EngineStats, StepCost

DASHBOARD = Path(__file__).parents[3] / "deploy" / "grafana" / "headrace.json"
NAME = re.compile(r"\bheadrace_\w+")
LABELS = re.compile(r"by \(([\w, ]+)\)")
SECRET = "a most private question"


def samples(text: str) -> dict[str, set[str]]:
    """Names on the page, with their labels."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition("{")
            labels = set(re.findall(r"(\w+)=\"", rest))
            found.setdefault(name.split(" ")[0], set()).update(labels)
    return found


def test_every_query_of_the_dashboard_has_its_metric(script: Script) -> None:
    from test_tenants import serving

    with serving(script, [tenant("a")]) as (server, _):
        headers = {"x-api-key": "key-a"}
        server.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}, headers=headers)
        server.settled()
        known = samples(server.http.get("/metrics").text)
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(queries) > 30
    # Labels' values come with the first step of a real worker, and with a store.
    unmade = {"headrace_graph_steps_total", "headrace_kv_store_events_total"}
    for query in queries:
        names = NAME.findall(query)
        assert names, query
        assert set(names) <= set(known) | unmade, query
        for label in LABELS.findall(query):
            assert all(label in known[name] for name in names if name in known), query


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Prometheus' promtool")
def test_promtool_reads_every_query_and_the_page(script: Script, tmp_path: Path) -> None:
    with running(lambda: scripted_llm(script)) as server:
        page = server.http.get("/metrics").text
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [re.sub(r"\$__\w+", "1m", target["expr"]) for panel in panels for target in panel["targets"]]
    assert judged(tmp_path, queries).returncode == 0, judged(tmp_path, queries).stderr
    assert judged(tmp_path, [*queries, "rate(headrace_steps_total)"]).returncode != 0  # it does look at them
    seen = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True, timeout=60)
    assert seen.returncode in (0, 3), seen.stderr  # 3: it can be read, and some names are not to its taste
    assert page.startswith("#")


def judged(folder: Path, queries: list[str]) -> subprocess.CompletedProcess[str]:
    rules = [{"record": f"query:{k}", "expr": query} for k, query in enumerate(queries)]
    path = folder / "rules.yml"  # JSON is YAML
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    return subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True, timeout=60)


def test_operations_of_steps_are_counted(tiny: Running) -> None:
    before = samples_of(tiny)
    assert tiny.complete([5] * 40, max_tokens=3, temperature=0).status_code == 200
    until(lambda: samples_of(tiny)["headrace_sampled_tokens_total"] >= before["headrace_sampled_tokens_total"] + 3, "?")
    after = samples_of(tiny)
    grown = {name: after[name] - before[name] for name in before}
    cost = tiny.host.llm.step_cost
    assert cost is not None
    hidden, inner, layers, kv = 32, 48, 2, 16
    assert cost == StepCost(
        token=2 * layers * hidden * (2 * hidden + 2 * kv + 3 * inner),
        attended=4 * layers * hidden,
        sampled=2 * hidden * 272,
    )
    tokens = grown['headrace_step_tokens_total{phase="prefill"}'] + grown['headrace_step_tokens_total{phase="decode"}']
    at_least = 42 * cost.token + (40 * 41 // 2 + 41 + 42) * cost.attended + 3 * cost.sampled
    assert tokens >= 42  # one more where a step was planned in vain
    assert at_least <= grown["headrace_step_flops_total"] <= at_least + 2 * (cost.token + 44 * cost.attended)
    assert grown["headrace_step_busy_seconds_total"] > 0
    assert grown['headrace_step_kinds_total{kind="prefill"}'] == 1
    steps = grown["headrace_steps_total"]
    assert steps == grown["headrace_step_size_tokens_count"] == grown["headrace_step_seconds_count"] >= 3
    assert grown["headrace_step_size_tokens_sum"] == tokens  # no drafts were taken back
    assert grown['headrace_step_size_tokens_bucket{le="32.0"}'] == steps - 1  # all but the prompt's
    assert grown["headrace_step_budget_tokens_total"] == steps * resolve({}).scheduler.token_budget
    assert grown['headrace_step_padding_tokens_total{reason="ended"}'] == tokens - 42


def samples_of(server: Running) -> dict[str, float]:
    lines = [line for line in server.http.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_a_line_per_request_and_no_content_in_it(script: Script, caplog: pytest.LogCaptureFixture) -> None:
    settings = AppSettings(log_requests=True)
    with (
        running(lambda: scripted_llm(script), settings=settings) as server,
        caplog.at_level(logging.INFO, "headrace.requests"),
    ):
        answer = server.chat(SECRET, max_tokens=5)
        assert server.chat(SECRET, max_tokens=5, stream=True).status_code == 200
        until(lambda: len(caplog.records) == 2, "no line is written")
    line = json.loads(caplog.records[0].message)
    assert line["request_id"] == answer.headers["x-request-id"]
    assert (line["generated_tokens"], line["finish_reasons"], line["error"]) == (5, ["length"], None)
    assert 0 < line["ttft_s"] <= line["seconds"]
    assert SECRET not in caplog.text
    assert "lorem" not in caplog.text


def test_one_that_went_away_is_told_as_aborted(script: Script) -> None:
    told: list[Finished] = []
    with running(lambda: scripted_llm(held(script))) as server:
        server.host.observers.append(lambda finished, _: told.append(finished))
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": LONG}
        bare = server.send_raw("/v1/chat/completions", body)
        until(lambda: bool(server.requests), "it does not begin")
        bare.close()
        until(lambda: bool(told), "its end is not told")
    assert (told[0].error, told[0].finish_reasons) == ("abort", ["abort"])


def lines(caplog: pytest.LogCaptureFixture, count: int) -> list[dict[str, Any]]:
    until(lambda: len(caplog.records) >= count, "a line is missing")
    told = [json.loads(record.message) for record in caplog.records]
    caplog.clear()
    assert len(told) == count
    return told


def test_a_line_for_what_is_refused_too(script: Script, caplog: pytest.LogCaptureFixture) -> None:
    limits, settings = HostLimits(max_open=1), AppSettings(log_requests=True)
    tenancy = Tenancy(Registry([tenant("a")]), UsageBook(None))
    key = {"authorization": "Bearer key-a"}
    bodies = [
        ({"prompt": SECRET, SECRET: 1}, key, 400, "invalid_request_error", "/v1/completions"),
        ({"prompt": "x", "model": SECRET}, key, 404, "model_not_found", "/v1/completions"),
        ({"prompt": "x"}, {"x-api-key": SECRET}, 401, "invalid_api_key", "/v1/completions"),
        ({"prompt": "x"}, key, 404, "invalid_request_error", f"/v1/{SECRET}"),
        ({"prompt": "x", "n": 2}, key, 400, "invalid_request_error", "/v1/completions"),
    ]
    with (
        running(lambda: scripted_llm(held(script)), limits=limits, settings=settings, tenancy=tenancy) as server,
        caplog.at_level(logging.INFO, "headrace.requests"),
    ):
        for body, headers, status, error, path in bodies:
            assert server.http.post(path, json=body, headers=headers).status_code == status
            [line] = lines(caplog, 1)
            assert (line["status"], line["error"]) == (status, error)
            assert line["route"] == (path if SECRET not in path else "unknown")
            assert line["tenant"] == ("a" if headers is key else None)
            assert SECRET not in json.dumps(line)
        for method, path, route in (
            ("GET", "/v1/models", "/v1/models"),
            ("GET", f"/v1/models/{SECRET}", "/v1/models/{name:path}"),
            ("POST", "/tokenize", "/tokenize"),
            ("GET", "/admin/tenants", "/admin/tenants"),
        ):
            assert server.http.request(method, path).status_code == 401
            [line] = lines(caplog, 1)
            assert (line["route"], line["error"]) == (route, "invalid_api_key")
            assert f'http_responses_total{{route="{route}",status="401"}} 1' in server.http.get("/metrics").text
        server.http.get("/metrics")
        server.http.get("/health")
        kept = server.send_raw("/v1/completions", {"prompt": SECRET, "max_tokens": LONG}, key="key-a")
        until(lambda: server.host.num_open == 1, "it is not open")
        assert server.http.post("/v1/completions", json={"prompt": "x"}, headers=key).status_code == 429
        assert [(line["status"], line["error"]) for line in lines(caplog, 1)] == [(429, "queue_full")]
        server.server._post(server.server.begin_drain)
        server.server._post(server.server.end_at_once)
        [cut] = lines(caplog, 1)
        assert (cut["status"], cut["error"], cut["finish_reasons"]) == (503, "stopping", ["abort"])
        kept.close()


def test_an_answer_that_nobody_foresaw_is_counted_and_logged(
    script: Script, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        running(lambda: scripted_llm(script), settings=AppSettings(log_requests=True)) as server,
        caplog.at_level(logging.INFO, "headrace.requests"),
    ):
        monkeypatch.setattr(server.host, "generate", None)  # any bug
        assert server.complete("x").status_code == 500
        told = lambda: [one for one in caplog.records if one.name == "headrace.requests"]  # noqa: E731  # others tell too
        until(lambda: bool(told()), "a line is missing")
        line = json.loads(told()[0].message)
        assert (line["status"], line["error"]) == (500, "internal_error")
        assert server.host.metrics.values["http_responses"]["/v1/completions", "500"] == 1


def test_no_time_of_a_request_lies_before_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    arrival = Arrival()
    monkeypatch.setattr(time, "time_ns", lambda: arrival.at_ns - 2_000_000_000)  # somebody set the clock back
    assert arrival.now_ns() >= arrival.at_ns


def test_times_begin_before_a_body_is_read(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client waits no less for its first token where its body was long in coming."""
    steps: list[str] = []
    early = Arrival("text_completion")
    early.at_s -= 100.0
    monkeypatch.setattr("headrace.api.http.app.arrival_of", lambda _: (steps.append("arrived"), early)[1])
    with running(lambda: scripted_llm(script)) as server:
        read = server.host.intake.read
        monkeypatch.setattr(server.host.intake, "read", lambda *given: (steps.append("read"), read(*given))[1])
        assert server.complete("x", max_tokens=1).status_code == 200
        server.settled()
    assert steps == ["arrived", "read"]
    for name in ("time_to_first_token_seconds", "request_seconds"):
        assert 100.0 <= server.host.metrics.histograms[name].sum < 200.0


def test_a_cost_is_linear_in_what_was_done() -> None:
    cost = StepCost(token=5, attended=3, sampled=2)
    assert cost.of(EngineStats(scheduled_tokens=10, attended=7, sampled_tokens=1)) == 50 + 21 + 2
