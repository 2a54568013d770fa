"""``headrace serve`` as a process: deaths of either side, signals, TLS, refusals at start."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from cli_models import SMALL, start, write_model
from served import DEADLINE_S, until
from tiny_encoder import write_encoder

TEXT = "/v1/completions"
END_S = 4 * DEADLINE_S  # two processes take leave, on a machine that may have much else to do
ENDLESS: dict[str, Any] = {"prompt": "x", "max_tokens": 200_000, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("served"), max_position_embeddings=1 << 18)


class Served:
    """A ``headrace serve`` process and a client to it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.url = self._await_address()
        self.http = httpx.Client(base_url=self.url, timeout=DEADLINE_S, verify=False)

    def _await_address(self) -> str:
        streams = [stream for stream in (self.process.stdout, self.process.stderr) if stream is not None]
        deadline = time.monotonic() + 120
        seen = b""
        while time.monotonic() < deadline:
            for stream in select.select(streams, [], [], 0.2)[0]:
                seen += os.read(stream.fileno(), 4096)
            if found := re.search(rb"serving \S+ on (https?://\S+)\n|^(\{.*\})$", seen, re.MULTILINE):
                self.told = None if found[2] is None else json.loads(found[2])
                return found[1].decode() if self.told is None else str(self.told["url"])
            assert self.process.poll() is None, seen.decode()
        raise AssertionError(f"no address: {seen.decode()}")

    def children(self) -> list[int]:
        """Process ids of the engine, and of the encoder where there is one."""
        listing = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in listing.split() if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def ready(self) -> bool:
        try:
            return self.http.get("/ready").status_code == 200
        except httpx.TransportError:
            return False

    def metric(self, name: str, client: httpx.Client | None = None) -> float:
        page = (client or self.http).get("/metrics").text
        found = re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
        assert found, name
        return float(found[1])


def kill_with_children(process: subprocess.Popen[bytes]) -> None:
    """A child that a failed test left standing still would hold the pipes open, for ever."""
    listings = Path(f"/proc/{process.pid}/task").glob("*/children")
    left = [int(pid) for listing in listings for pid in listing.read_text().split()]
    process.kill()
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=END_S)


@contextmanager
def serving(model: str, *more: str) -> Iterator[Served]:
    process = start("serve", "-m", model, "--port", "0", "--kv-memory", "64MiB", "--threads", "1", *more)
    try:
        yield Served(process)
    finally:
        kill_with_children(process)


def test_a_killed_engine_ends_streams_with_an_error_and_comes_back(model: str) -> None:
    with serving(model) as served:
        [engine] = served.children()
        with served.http.stream("POST", TEXT, json=ENDLESS) as response:
            lines = response.iter_lines()
            next(lines)
            os.kill(engine, signal.SIGKILL)
            rest = [line for line in lines if line.startswith("data: ")]
        assert "died" in json.loads(rest[-1][6:])["error"]["message"]
        assert not any("[DONE]" in line for line in rest)
        until(served.ready, "the engine does not come back", within_s=60)
        assert served.children() != [engine]
        answer = served.http.post(TEXT, json={"prompt": "x", "max_tokens": 3, "ignore_eos": True})
        assert answer.json()["usage"]["completion_tokens"] == 3
        assert served.metric("headrace_engine_restarts_total") == 1


def test_a_killed_front_takes_all_that_it_started_with_it(model: str, tmp_path: Path) -> None:
    """It said where it is as JSON, too."""
    with serving(model, "--json", "--embedding-model", str(write_encoder(tmp_path))) as served:
        port = int(served.url.rpartition(":")[2])
        assert served.told == {"url": served.url, "port": port, "model": model, "pid": served.process.pid}
        engine, encoder = served.children()
        with served.http.stream("POST", TEXT, json=ENDLESS) as response:
            next(response.iter_lines())
            served.process.kill()
            served.process.wait(END_S)
            until(lambda: zombie(engine) and zombie(encoder), "something outlives its front")


def zombie(pid: int) -> bool:
    """Whoever ought to collect it may take longer."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_drains_open_requests_end_well_and_new_ones_are_sent_away(model: str, signum: signal.Signals) -> None:
    """The engine stands still meanwhile, so that the request is open for as long as the test looks. A closed terminal
    tells the engine too."""
    with serving(model, "--drain", "60") as served, ThreadPoolExecutor(1) as pool:
        [engine] = served.children()
        os.kill(engine, signal.SIGSTOP)
        opened = pool.submit(served.http.post, TEXT, json={"prompt": "x", "max_tokens": 15, "ignore_eos": True})
        refused = httpx.Client(base_url=served.url, timeout=DEADLINE_S)
        until(lambda: served.metric("headrace_open_sequences", refused) == 1, "it is not open")
        served.process.send_signal(signum)
        if signum == signal.SIGHUP:
            os.kill(engine, signum)
        until(lambda: refused.get("/ready").status_code == 503, "it still calls itself ready")
        late = refused.post(TEXT, json={"prompt": "x"})
        assert late.status_code == 503
        assert late.headers["retry-after"]
        assert refused.get("/health").status_code == 200
        os.kill(engine, signal.SIGCONT)
        assert opened.result(DEADLINE_S).json()["usage"]["completion_tokens"] == 15
        assert served.process.wait(END_S) == 0


def test_a_second_signal_does_not_wait_for_an_engine_that_stands_still(model: str) -> None:
    """Neither while streams are given their time, nor at the end of the process."""
    watcher = httpx.Client(timeout=DEADLINE_S)
    with serving(model, "--drain", "600") as served, served.http.stream("POST", TEXT, json=ENDLESS) as response:
        lines = response.iter_lines()
        next(lines)
        [engine] = served.children()
        os.kill(engine, signal.SIGSTOP)
        served.process.send_signal(signal.SIGTERM)
        until(lambda: watcher.get(f"{served.url}/ready").status_code == 503, "it does not drain")
        served.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line.startswith("data: ")]
        assert json.loads(rest[-1][6:])["error"]["message"] == "the server is stopping"
        served.process.wait(END_S)  # for ever, if it waited
        until(lambda: not Path(f"/proc/{engine}").exists(), "the engine is left behind")
        assert served.process.stderr is not None
        assert served.process.stderr.read().decode().splitlines() == [
            "finishing 1 request, at most 600 s; Ctrl-C again ends at once",
            "ending at once: 1 request cut short",
        ]


def test_draining_has_a_deadline_and_then_streams_end_with_an_error(model: str) -> None:
    with serving(model, "--drain", "0.3") as served, served.http.stream("POST", TEXT, json=ENDLESS) as response:
        lines = response.iter_lines()
        next(lines)
        served.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line.startswith("data: ")]
        assert json.loads(rest[-1][6:])["error"]["message"] == "the server is stopping"
        assert served.process.wait(END_S) == 0
        assert served.process.stderr is not None
        assert b"0.3 s are over: 1 request cut short" in served.process.stderr.read()


def test_a_client_of_a_process_that_goes_away_frees_the_engine(model: str) -> None:
    with serving(model) as served:
        payload = json.dumps({**ENDLESS, "stream": False}).encode()
        host, port = served.url.removeprefix("http://").split(":")
        head = f"POST {TEXT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(payload)}"
        with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as bare:
            bare.sendall(head.encode() + b"\r\n\r\n" + payload)
            until(lambda: served.metric("headrace_requests_running") == 1, "it never ran")
        until(lambda: served.metric("headrace_requests_running") == 0, "it still runs")
        until(lambda: served.metric("headrace_kv_cache_used_blocks") == 0, "blocks are still used")
        assert served.metric("headrace_sampled_tokens_total") < ENDLESS["max_tokens"]


def test_tls(model: str, tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    try:
        subprocess.run([*make, "-keyout", key, "-out", cert], check=True, capture_output=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("makes its certificate with openssl")
    with serving(model, "--tls-cert", str(cert), "--tls-key", str(key)) as served:
        assert served.url.startswith("https://")
        assert served.ready()
        trusting = ssl.create_default_context(cafile=str(cert))
        trusting.check_hostname = False
        assert httpx.get(f"{served.url}/health", verify=trusting, timeout=DEADLINE_S).status_code == 200


def test_what_cannot_be_served_is_refused_before_loading(model: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for arguments, words in (
            (["-m", "no-such-model"], "there is no model"),
            (["-m", model, "--port", port], f"port {port}"),
            (["-m", model, "--port", "0", "--max-body", "much"], "max_body"),
            (["-m", model, "--port", "0", *SMALL, "--max-model-len", "999999999"], "max_model_len"),
        ):
            process = start("serve", *arguments)
            _, err = process.communicate(timeout=120)
            assert process.returncode in (1, 2), err
            assert words in err.decode()
            assert b"Traceback" not in err


def test_a_front_that_waits_for_engines_says_so_and_ends_when_asked(model: str) -> None:
    nowhere = ("--prefill", "tcp://127.0.0.1:1", "--decode", "tcp://127.0.0.1:2")
    process = start("serve", "-m", model, "--port", "0", "--threads", "1", *nowhere)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        assert b"waiting for the engines at tcp://127.0.0.1:1 (prefill) and tcp://127.0.0.1:2 (decode)" in line
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_S) == 0
        assert b"asked to stop before the engine was there" in process.stderr.read()
    finally:
        kill_with_children(process)
