"""The store as a service: leases, secrets, ranges, bounds, and what clients see of a server that is gone."""

from __future__ import annotations

import itertools
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import msgspec
import numpy as np
import pytest
import zmq
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kv_servers import on_a_thread
from kv_values import key_of, payload_of

from headrace.contract.errors import ConfigError, StoreError
from headrace.kv.backoff import BACKOFF_S
from headrace.kv.client import RemoteStore
from headrace.kv.exposition import exposed
from headrace.kv.leases import MOST_LEASES, Leases
from headrace.kv.local import LocalStore
from headrace.kv.records import Match, RecordKind, RecordSpec, StoreMatch, usable_grains
from headrace.kv.secret import read_secret, secure_client
from headrace.kv.server import StoreServer

BLOCK = RecordSpec(RecordKind.BLOCK, (0,), 5000)
STATE = RecordSpec(RecordKind.STATE, (1,), 5000, (1,), Match.TRAILING, 200)
TENANT = bytes(16)
LOOPBACK = "tcp://127.0.0.1:*"
ROOMY = 64 << 20


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def serving(folder: Path, capacity: int = 64 << 20, **settings: Any) -> Iterator[StoreServer]:
    server = StoreServer(LocalStore(folder, capacity, segment_bytes=50_000), LOOPBACK, **settings)
    with on_a_thread(server):
        yield server


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(tmp_path: Path, clock: Clock) -> Iterator[StoreServer]:
    with serving(tmp_path, clock=clock) as running:
        yield running


@pytest.fixture
def client(server: StoreServer) -> Iterator[RemoteStore]:
    store = RemoteStore(server.address, timeout_s=60)
    yield store
    store.close()


def put(store: Any, number: int, kind: int = 0, depth: int | None = None) -> bool:
    key, depth = key_of(number), number if depth is None else depth
    return bool(store.put(key, kind, payload_of(key), tenant=TENANT, depth=depth, turn=3))


def match(store: Any, *numbers: int, specs: tuple[RecordSpec, ...] = (BLOCK,)) -> StoreMatch:
    return store.match([key_of(number) for number in numbers], specs)


def test_put_match_get_release(client: RemoteStore) -> None:
    assert match(client, 0, 1).grains == 0
    assert put(client, 0)
    assert put(client, 0)
    assert put(client, 1)
    assert client.has([(key_of(0), 0), (key_of(0), 2), (key_of(5), 0)]) == [True, False, False]
    found = match(client, 0, 1, 2)
    assert (found.grains, found.turn) == (2, 3)
    for number in (0, 1):
        value = client.get_leased(found.lease, key_of(number), 0)
        assert value is not None
        assert np.array_equal(value, payload_of(key_of(number)))
    assert client.get_leased(found.lease, key_of(2), 0) is None
    client.release(found.lease)
    assert client.get_leased(found.lease, key_of(0), 0) is None
    facts = client.facts()
    assert (facts["puts"], facts["leases"], facts["requests_put"]) == (2, 0, 3)


def test_nothing_is_read_without_a_lease_or_after_it(client: RemoteStore, clock: Clock) -> None:
    put(client, 0)
    put(client, 1)
    found = match(client, 0)
    assert client.get_leased(found.lease, key_of(1), 0) is None  # it is on the other value
    assert client.get_leased(found.lease + 1, key_of(0), 0) is None
    assert client.get_leased(found.lease, key_of(0), 0) is not None
    clock.now = 31.0
    assert client.get_leased(found.lease, key_of(0), 0) is None
    assert match(client, 0).lease != found.lease


def test_ranges(client: RemoteStore) -> None:
    put(client, 0)
    lease, whole = match(client, 0).lease, payload_of(key_of(0))
    for offset, length in ((0, 5000), (0, 1), (4999, 1), (17, 300)):
        part = client.get_range(lease, key_of(0), 0, offset, length)
        assert part is not None
        assert np.array_equal(part, whole[offset : offset + length])
    assert client.get_range(lease, key_of(0), 0, 4999, 2) is None


@pytest.mark.parametrize("held", [h for h in itertools.product((False, True), repeat=6) if sum(h) in (3, 4, 5)])
def test_server_and_engine_agree_on_what_is_usable(held: tuple[bool, ...]) -> None:
    from headrace.kv.server import _usable
    from headrace.kv.wire import Check, KindRule

    keys = [key_of(i) for i in range(3)]
    table = {(keys[g], kind): held[g + (3 if kind else 0)] for g in range(3) for kind in (0, 2)}
    request = Check(number=1, keys=keys, rules=[KindRule(0), KindRule(2, 200)])
    expected = usable_grains((BLOCK, STATE), 3, lambda g, kind: table[keys[g], int(kind)])
    assert _usable(request, table) == expected


def test_a_lease_keeps_its_values_from_being_evicted(tmp_path: Path) -> None:
    with serving(tmp_path, capacity=400_000, clock=Clock()) as server:
        store = RemoteStore(server.address, timeout_s=60)
        for number in range(3):
            put(store, number)
        found = match(store, 0, 1, 2)
        for number in range(3, 80):
            assert put(store, number, depth=0)
        assert all(store.get_leased(found.lease, key_of(n), 0) is not None for n in range(3))
        store.release(found.lease)
        for number in range(80, 140):
            put(store, number, depth=0)
        assert match(store, 0).grains == 0
        store.close()


def test_leases_are_bounded_in_number_and_bytes() -> None:
    clock = Clock()
    leases = Leases(clock, 100)
    first = leases.grant([b"a", b"b"], 60, 10)
    assert first is not None
    assert leases.grant([b"c"], 50, 10) is None
    second = leases.grant([b"a"], 40, 20)
    assert second is not None
    leases.release(first.number)
    leases.release(first.number)
    assert leases.pinned(b"a")
    assert not leases.pinned(b"b")
    clock.now = 20.0
    assert leases.sweep() == 1
    assert not leases.pinned(b"a")
    many = [leases.grant([], 0, 5) for _ in range(MOST_LEASES + 1)]
    assert many[-1] is None
    assert many[-2] is not None


def test_a_secret_is_asked_for_and_kept(tmp_path: Path) -> None:
    with serving(tmp_path, secret=b"0123456789abcdef") as server:
        knows = RemoteStore(server.address, secret=b"0123456789abcdef", timeout_s=60)
        assert put(knows, 0)
        assert match(knows, 0).grains == 1
        for secret in (None, b"0123456789abcdeX"):
            stranger = RemoteStore(server.address, secret=secret, timeout_s=0.3)
            assert not put(stranger, 1)
            with pytest.raises(StoreError, match="does not answer"):
                stranger.facts()
            stranger.close()
        knows.close()


def test_other_machines_need_a_secret(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "one", 1 << 20)
    with pytest.raises(StoreError, match="secret"):
        StoreServer(store, "tcp://0.0.0.0:*")
    with serving(tmp_path / "two") as other, pytest.raises(StoreError, match="cannot be listened on"):
        StoreServer(store, other.address)
    store.close()


def test_secrets_are_files_of_one_owner(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    for text, mode, words in (("short", 0o600, "16"), ("long enough for a secret", 0o644, "chmod")):
        path.write_text(text)
        path.chmod(mode)
        with pytest.raises(ConfigError, match=words):
            read_secret(path)
    path.chmod(0o600)
    assert read_secret(path) == b"long enough for a secret"
    with pytest.raises(ConfigError, match="missing"):
        read_secret(tmp_path / "missing")


def raw(server: StoreServer, *frames: bytes, within_s: float = 20) -> Any:
    """What the server answers to frames; None when it does not."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(server.address)
        socket.send_multipart(list(frames))
        return msgspec.msgpack.decode(socket.recv()) if socket.poll(1000 * within_s) else None


def test_messages_that_are_none_are_refused_and_harm_nobody(server: StoreServer, client: RemoteStore) -> None:
    encode = msgspec.msgpack.encode
    for nothing in (b"", b"\xff" * 100, encode({"t": "get"})):
        assert raw(server, nothing, within_s=0.3) is None
    put_one = {"t": "put", "number": 7, "names": [(key_of(0), 0)], "crcs": [1], "tenant": TENANT, "depths": [0]}
    for message in (
        {"t": "nonsense", "number": 7},
        {"t": "check", "number": 7, "keys": [b"short"], "rules": [(0, 0)]},
        {"t": "check", "number": 7, "keys": [], "rules": []},
        {"t": "check", "number": 7, "keys": [], "rules": [(0, 0)], "lease_s": 1e9},
        {"t": "get", "number": 7, "lease": -1, "names": []},
        put_one,
        {**put_one, "depths": []},
    ):
        answer = raw(server, encode(message))
        assert (answer["t"], answer["number"]) == ("refused", 7)
    assert raw(server, encode(put_one), b"not what the checksum says")["stored"] == [False]
    assert put(client, 0)


def test_a_dead_server_costs_one_deadline_and_then_nothing(tmp_path: Path, clock: Clock) -> None:
    with serving(tmp_path) as server:
        store = RemoteStore(server.address, timeout_s=20, clock=clock)
        assert put(store, 0)
    store._timeout_s = 0.2
    for passed, calls in ((0.0, 2), (BACKOFF_S, 3)):
        clock.now = passed
        for _ in range(200):
            assert match(store, 0).grains == 0
            assert not put(store, 1)
        assert store._number == calls, "a silent server was asked again at once"
    store.close()
    assert match(store, 0).grains == 0


def test_many_threads_share_a_client(client: RemoteStore) -> None:
    wrong: list[int] = []

    def work(first: int) -> None:
        for number in range(first, first + 20):
            put(client, number)
            lease = match(client, number).lease
            value = client.get_leased(lease, key_of(number), 0)
            if value is None or not np.array_equal(value, payload_of(key_of(number))):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(20 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_metrics_are_told_in_prometheus_words(server: StoreServer, client: RemoteStore) -> None:
    put(client, 0)
    with exposed(server.facts, 0) as port:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            text = response.read().decode()
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"http://127.0.0.1:{port}/other", timeout=10)
        with pytest.raises(StoreError, match="cannot be listened on"), exposed(server.facts, port):
            pass
    lines = text.splitlines()
    assert "headrace_kvstore_values 1" in lines
    assert "headrace_kvstore_requests_put_total 1" in lines
    assert "# TYPE headrace_kvstore_puts_total counter" in lines
    assert str(server.facts()["folder"]) not in text
    assert "# TYPE headrace_kvstore_held_by_engines gauge" in lines  # it falls, too
    assert "directory_age_seconds" not in text  # of no news there is no age
    server._directory.announce("tcp://a:1", [(b"k", 2)])
    assert 0 <= server.facts()["directory_age_seconds"] < 3600  # type: ignore[operator]


class RemoteMachine(RuleBasedStateMachine):
    """Client and server against a dictionary, with room for everything: nothing is lost, nothing is wrong."""

    numbers = st.integers(0, 9)

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.stack = ExitStack()
        self.server = self.stack.enter_context(serving(Path(self.folder.name), clock=Clock()))
        self.client = RemoteStore(self.server.address, timeout_s=60)
        self.model: set[int] = set()
        self.leases: dict[int, set[int]] = {}

    @rule(number=numbers)
    def put(self, number: int) -> None:
        assert put(self.client, number)
        self.model.add(number)

    @rule(chain=st.lists(numbers, min_size=1, max_size=4, unique=True))
    def match(self, chain: list[int]) -> None:
        found = match(self.client, *chain)
        assert found.grains == next((i for i, n in enumerate(chain) if n not in self.model), len(chain))
        assert (found.lease > 0) == (found.grains > 0)
        if found.lease:
            self.leases[found.lease] = set(chain[: found.grains])

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), number=numbers)
    def get(self, data: st.DataObject, number: int) -> None:
        lease = data.draw(st.sampled_from(sorted(self.leases)))
        value = self.client.get_leased(lease, key_of(number), 0)
        assert (value is not None) == (number in self.leases[lease])
        assert value is None or np.array_equal(value, payload_of(key_of(number)))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.leases)))
        self.client.release(lease)
        del self.leases[lease]
        assert self.client.get_leased(lease, key_of(0), 0) is None

    @invariant()
    def nothing_leaks(self) -> None:
        assert self.client.facts()["leases"] == len(self.leases)

    def teardown(self) -> None:
        self.client.close()
        self.stack.close()
        self.folder.cleanup()


TestRemoteMachine = RemoteMachine.TestCase
TestRemoteMachine.settings = settings(max_examples=8, stateful_step_count=25, deadline=None)


def test_an_address_on_which_somebody_answers_is_not_taken_over(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/s"
    first = StoreServer(LocalStore(tmp_path / "a", ROOMY), address)
    second = LocalStore(tmp_path / "b", ROOMY)
    with pytest.raises(StoreError, match="another server answers there"):
        StoreServer(second, address)
    second.close()
    assert (tmp_path / "s").exists()
    first.close()
    (tmp_path / "s").unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as killed:  # what one leaves that is killed
        killed.bind(str(tmp_path / "s"))
    StoreServer(LocalStore(tmp_path / "a", ROOMY), address).close()


def test_refused_puts_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(tmp_path, capacity=50_000) as server:
        client = RemoteStore(server.address, timeout_s=60)
        for number in range(3):
            key = key_of(number)
            assert not client.put(key, 0, payload_of(key, 60_000), tenant=TENANT, depth=0)
        assert client.refused == 3
        client.close()
    assert sum("refused a value" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("secret", [None, b"quite another secret"])
def test_a_client_that_is_turned_away_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, secret: bytes | None
) -> None:
    told = threading.Event()
    with serving(tmp_path, secret=b"sixteen bytes or more") as server:
        assert server._doorman is not None
        turned_away = server._doorman._turned_away
        server._doorman._turned_away = lambda where: (turned_away(where), told.set())  # type: ignore[method-assign]
        with zmq.Context() as context, context.socket(zmq.DEALER) as client:
            client.linger = 0
            if secret is not None:
                secure_client(client, secret)
            client.connect(server.address)
            assert told.wait(60)
    assert sum("was turned away" in record.getMessage() for record in caplog.records) == 1
