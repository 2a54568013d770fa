"""A real server on a loopback socket over an engine of this process: scripted outputs, or a tiny model. And clients."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cli_models
import httpx

from headrace._core import Scheduler
from headrace.api.async_llm import AsyncLLM
from headrace.api.http.app import AppSettings, build_app
from headrace.api.http.host import EngineHost, HostLimits
from headrace.api.http.server import Server, ServerSettings, listen
from headrace.api.tenants.tenancy import Tenancy
from headrace.api.text.tokenizer import Tokenizer, load_tokenizer
from headrace.contract.request import Request
from headrace.engine.client import ThreadClient
from headrace.engine.engine import Engine
from headrace.grammar.compiler import GrammarPool
from headrace.worker.fake import FakeWorker

DEADLINE_S = 30.0
LONG = 15_000  # tokens of a request that a hold keeps running
LONG_STEP_S = 2 * DEADLINE_S / LONG
MODEL = "tiny"


def text_tokenizer(folder: Path, merges: Sequence[tuple[str, str]] = (), **settings: Any) -> Tokenizer:
    """One id per byte and merge, and the control tokens of ``cli_models``.

    ``settings`` go into tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    cli_models.byte_tokenizer(merges).save(str(folder / "tokenizer.json"))
    known = {"eos_token": "<|end|>", "chat_template": cli_models.TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(known | settings))
    return load_tokenizer(folder)


class Hold:
    """Keeps requests running for as long as a test needs them to; nothing depends on who is quicker.

    ``step_s``: the engine still turns, and so hears of ends, but each step takes at least this long: LONG tokens last
    longer than two of the tests' deadlines. None: it stands still from the second token on, until ``release``.
    """

    def __init__(self, step_s: float | None = LONG_STEP_S) -> None:
        self._step_s = step_s
        self._released = threading.Event()

    def step(self, first: bool) -> None:
        """On the engine's thread, before a step draws its tokens."""
        if self._step_s is not None:
            self._released.wait(self._step_s)
        elif not first and not self._released.wait(DEADLINE_S):
            raise TimeoutError("the test did not let go of its hold")

    def release(self) -> None:
        self._released.set()


class Turnstile(Hold):
    """Lets as many steps through as it is told to, and counts those that came: time has no part in it."""

    def __init__(self, passes: int) -> None:
        super().__init__()
        self._passes = threading.Semaphore(passes)
        self.num_came = 0

    def step(self, first: bool) -> None:  # noqa: ARG002  # of a hold
        self.num_came += 1
        if not self._passes.acquire(timeout=DEADLINE_S):
            raise TimeoutError("the test did not let the step through")

    def admit(self, count: int) -> None:
        self._passes.release(count)


@dataclass
class Script:
    """What a pretended model says: by what the prompt contains, else ``default``. ``hold``: when it may go on."""

    tokenizer: Tokenizer
    answers: Mapping[bytes, bytes] = field(default_factory=dict)
    default: bytes = b"lorem ipsum "
    hold: Hold | None = None

    def ids(self, raw: bytes) -> list[int]:
        """Ids that stand for these bytes, whatever they are."""
        by_byte = {self.tokenizer.token_bytes(i): i for i in range(256)}
        return [by_byte[bytes([byte])] for byte in raw]

    def next_token(self, prompt: Sequence[int], num_out: int) -> int:
        raw = b"".join(self.tokenizer.token_bytes(i) for i in prompt)
        said = next((out for key, out in self.answers.items() if key in raw), None)
        if said is None:
            return self.ids(self.default)[num_out % len(self.default)]
        ids = self.ids(said)
        return ids[num_out] if num_out < len(ids) else self.tokenizer.eos_ids[0]


class ScriptedWorker(FakeWorker):
    """Knows which part of a row is the prompt: the engine tells with the first slice."""

    def __init__(self, script: Script, fail_steps: set[int] | None = None) -> None:
        super().__init__(fail_steps=fail_steps or set())
        self._script = script
        self._prompt_len: dict[int, int] = {}
        self._drew = False

    def launch_forward(self, plan: Any, starts: Any) -> Any:
        self._prompt_len.update({start.seq_id: start.prompt_len for start in starts})
        return super().launch_forward(plan, starts)

    def launch_sample(self, handle: Any) -> None:
        if self._script.hold is not None and handle.plan.samples.any():
            self._script.hold.step(first=not self._drew)
            self._drew = True
        for seq_id, samples in zip(handle.plan.seq_ids.tolist(), handle.plan.samples.tolist()):
            if samples:
                row, cut = self.rows[seq_id], self._prompt_len[seq_id]
                token = self._script.next_token(row[:cut], len(row) - cut)
                row.append(token)
                handle.tokens.append(token)
            handle.offsets.append(len(handle.tokens))
            handle.verified.append(0)
            handle.accepted.append(0)


class SpyClient(ThreadClient):
    """Keeps every request that reached the engine, and the names of those that were taken back."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.engine = engine
        self.requests: list[Request] = []
        self.aborted: list[str] = []

    def submit(self, request: Request, sink: Any) -> None:
        self.requests.append(request)
        super().submit(request, sink)

    def abort(self, request_id: str) -> None:
        super().abort(request_id)
        self.aborted.append(request_id)


def held(script: Script, step_s: float | None = LONG_STEP_S) -> Script:
    """The same model on a hold of its own."""
    return replace(script, hold=Hold(step_s))


def scripted_llm(
    script: Script, *, fail_steps: set[int] | None = None, grammars: GrammarPool | None = None, **core: Any
) -> AsyncLLM:
    """An engine whose worker follows the script, whatever ``grammars`` made of a constraint."""
    limits = {"num_blocks": 4000, "block_size": 16, "token_budget": 512, "max_model_len": 20_000} | core
    engine = Engine(Scheduler(**limits), ScriptedWorker(script, fail_steps), grammars=grammars)
    facts = {"vocab_size": script.tokenizer.vocab_size, "max_model_len": limits["max_model_len"]}
    facts |= {"step_cost": {"token": 100, "attended": 10, "sampled": 1}}
    return AsyncLLM.over(SpyClient(engine), script.tokenizer, facts)


def dummy_llm(folder: Path, **settings: Any) -> AsyncLLM:
    """A tiny model with dummy weights, in this process."""
    model = cli_models.write_model(folder, max_position_embeddings=4096)
    return AsyncLLM(model, **{"kv_memory": 8 << 20, "num_threads": 1} | settings)


class Running:
    """A server on its thread, with ways to talk to it."""

    def __init__(self, host: EngineHost, server: Server, port: int) -> None:
        self.host = host
        self.server = server
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=DEADLINE_S)

    @property
    def client(self) -> SpyClient:
        client = self.host.llm.client
        assert isinstance(client, SpyClient)
        return client

    @property
    def engine(self) -> Engine:
        return self.client.engine

    @property
    def requests(self) -> list[Request]:
        return self.client.requests

    def post(self, route: str, body: Any) -> httpx.Response:
        return self.http.post(route, json=body)

    def chat(self, text: str, **fields: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **fields})

    def complete(self, prompt: Any, **fields: Any) -> httpx.Response:
        return self.post("/v1/completions", {"prompt": prompt, **fields})

    def stream(self, route: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """All events of a stream that ends well, without the last mark."""
        raw = self.raw_stream(route, body)
        assert raw[-1] == "[DONE]"
        return [json.loads(one) for one in raw[:-1]]

    def raw_stream(self, route: str, body: dict[str, Any]) -> list[str]:
        with self.http.stream("POST", route, json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            return [line[6:] for line in response.iter_lines() if line.startswith("data: ")]

    def settled(self) -> None:
        """Waits until all that was answered is closed and counted: a client may read its answer before that."""
        until(lambda: self.host.num_open == 0, "a request stays open")
        until(lambda: self.engine.stats.running == self.engine.stats.waiting == 0, "the engine still works")

    def send_raw(self, route: str, body: dict[str, Any], key: str = "", behind: bytes = b"") -> socket.socket:
        """A request on a bare socket, which the caller may drop; and what is sent ``behind`` it."""
        payload = json.dumps(body).encode()
        lines = [f"POST {route} HTTP/1.1", "host: here", "content-type: application/json"]
        lines += [f"x-api-key: {key}"] if key else []
        lines += [f"content-length: {len(payload)}", "", ""]
        bare = socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_S)
        bare.sendall("\r\n".join(lines).encode() + payload + behind)
        return bare


def until(condition: Callable[[], bool], words: str, within_s: float = DEADLINE_S) -> None:
    """Waits for something that must come; fails with ``words``."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, words
        time.sleep(0.005)


@contextmanager
def running(
    start: Callable[[], AsyncLLM],
    *,
    names: Sequence[str] = (MODEL,),
    limits: HostLimits | None = None,
    settings: AppSettings | None = None,
    drain_s: float = 5.0,
    tenancy: Tenancy | None = None,
    codec: str = "template",
) -> Iterator[Running]:
    """Serves on a free port for the length of a ``with``."""
    bound = listen(ServerSettings(port=0))
    host = EngineHost(start, names, limits, tenancy=tenancy, codec=codec)
    server = Server(build_app(host, settings), host, ServerSettings(port=0, drain_s=drain_s))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([bound])), daemon=True)
    thread.start()
    until(lambda: server.started, "the server does not start")
    made = Running(host, server, bound.getsockname()[1])
    try:
        yield made
    finally:
        made.http.close()
        server.should_exit = True
        thread.join(DEADLINE_S)
        host.close()
        assert not thread.is_alive(), "the server does not end"
