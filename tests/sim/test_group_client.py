"""The front of a data-parallel group over real processes with FakeWorkers: spreading, waking, deaths, ends."""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headrace._core import Scheduler
from headrace.contract.errors import EngineDead
from headrace.contract.request import Request, SamplingParams
from headrace.contract.result import TokenDelta
from headrace.contract.stats import EngineStats, OverlapStats, total_stats
from headrace.engine.engine import Engine
from headrace.engine.group import GroupClient, Loads
from headrace.engine.roles import RoleConfig, core_settings, make_cadence
from headrace.engine.turns import Turns
from headrace.worker.fake import FakeWorker, rolling_token

DEADLINE_S = 30.0
PROMPT = [3, 1, 4]
LONG = 90_000  # tokens, each of which takes a millisecond at least: three deadlines


def build(seat: tuple[int, int, str | None]) -> tuple[Engine, dict[str, int]]:
    """A rank over a FakeWorker; ``meeting`` None: no votes; "fail": it does not start."""
    rank, size, meeting = seat
    if meeting == "fail" and rank == 1:
        raise EngineDead("no such model")
    config, collective = RoleConfig(), None
    if meeting is not None:
        from headrace.parallel.gloo import GlooGroup

        config, collective = RoleConfig(role="normal"), GlooGroup(rank, size, meeting, DEADLINE_S)

    def slow(tokens: list[int]) -> int:
        time.sleep(0.001)
        return rolling_token(tokens)

    settings = {"num_blocks": 60_000, "block_size": 4, "max_model_len": 100_000, "token_budget": 64}
    core = Scheduler(**settings, **core_settings(config))
    return Engine(core, FakeWorker(next_token=slow), cadence=make_cadence(config, collective)), {"rank": rank}


def start(size: int, folder: Path | None) -> GroupClient:
    meeting = None if folder is None else f"file:{folder / 'meeting'}"
    seats = [(rank, size, meeting) for rank in range(size)]
    return GroupClient(build, seats, votes=meeting is not None)


def ask(name: str, max_tokens: int, prompt: list[int] | None = None) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, seed=0)
    return Request(request_id=name, prompt_token_ids=prompt or PROMPT, sampling=sampling)


def expected(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(rolling_token(tokens))
    return tokens[len(prompt) :]


def answer(deltas: queue.Queue[TokenDelta]) -> tuple[list[int], TokenDelta]:
    tokens: list[int] = []
    while True:
        delta = deltas.get(timeout=DEADLINE_S)
        tokens += delta.token_ids
        if delta.finish_reason is not None:
            return tokens, delta


@pytest.fixture(scope="module", params=["mixed", "voted"])
def calm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupClient]:
    """A group for the tests that leave it as it was."""
    client = start(2, tmp_path_factory.mktemp("meeting") if request.param == "voted" else None)
    yield client
    client.close()


@pytest.fixture(params=["mixed", "voted"])
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GroupClient]:
    client = start(2, tmp_path if request.param == "voted" else None)
    pids = client.pids
    yield client
    client.close()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()], "a process was left behind"


def test_requests_spread_and_come_back_whole(calm: GroupClient) -> None:
    group = calm
    sinks = [queue.Queue[TokenDelta]() for _ in range(12)]
    for i, sink in enumerate(sinks):
        group.submit(ask(str(i), 20 + i, [*PROMPT, i]), sink.put)
    for i, sink in enumerate(sinks):
        tokens, last = answer(sink)
        assert last.finish_reason == "length", last.error
        assert tokens == expected([*PROMPT, i], 20 + i)
    assert group._loads.tokens == group._loads.requests == [0, 0]
    sums_up = time.monotonic() + DEADLINE_S
    while group.stats.sampled_tokens != sum(20 + i for i in range(12)):
        assert time.monotonic() < sums_up
        time.sleep(0.02)
    assert all(stats.sampled_tokens > 0 for stats in group.rank_stats)
    assert [info["rank"] for info in group.infos] == [0, 1]


def test_an_abort_and_a_stop_find_their_rank(calm: GroupClient) -> None:
    group = calm
    sinks = {name: queue.Queue[TokenDelta]() for name in ("a", "b")}
    for name, sink in sinks.items():
        group.submit(ask(name, LONG), sink.put)
    group.abort("a")
    group.stop("b")
    group.abort("unknown")
    assert answer(sinks["a"])[1].finish_reason == "abort"
    assert answer(sinks["b"])[1].finish_reason == "stop"


def test_a_rank_that_dies_ends_the_group(group: GroupClient) -> None:
    sinks = [queue.Queue[TokenDelta]() for _ in range(4)]
    for i, sink in enumerate(sinks):
        group.submit(ask(str(i), LONG), sink.put)
    for sink in sinks:
        sink.get(timeout=DEADLINE_S)  # all of them are under way
    killed = group.pids[1]
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    for sink in sinks:
        _, last = answer(sink)
        assert last.finish_reason == "error"
        assert last.error == "rank 1 of 2: the engine process died (exit code -9)"
    gone = time.monotonic() + DEADLINE_S
    while group.alive or any(Path(f"/proc/{pid}").exists() and _runs(pid) for pid in group.pids):
        assert time.monotonic() < gone, "the other rank lives on"
        time.sleep(0.02)
    with pytest.raises(EngineDead, match=r"^rank [01] of 2: "):
        group.submit(ask("late", 3), print)
    assert group.stats == EngineStats()


def test_a_close_that_comes_before_the_news_of_a_death_tells_it(group: GroupClient) -> None:
    """As a server closes a group that it sees dead, to start another."""
    sinks = [queue.Queue[TokenDelta]() for _ in range(4)]
    for i, sink in enumerate(sinks):
        group.submit(ask(str(i), LONG), sink.put)
    for sink in sinks:
        sink.get(timeout=DEADLINE_S)
    dead = group._ranks[1]
    mourn = dead._mourn
    dead._mourn = lambda why: mourn(why) if dead._closing.wait(DEADLINE_S) else None  # type: ignore[method-assign]
    os.kill(dead.pid or 0, signal.SIGKILL)
    deadline = time.monotonic() + DEADLINE_S
    while group.alive:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert group.gone == "rank 1 of 2: the engine process died (exit code -9)"
    group.close()
    assert {answer(sink)[1].error for sink in sinks} == {group.gone}


def _runs(pid: int | None) -> bool:
    """Not a zombie that its parent has yet to bury."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_rank_that_stands_still_ends_the_group(tmp_path: Path) -> None:
    """The others wait for its vote; the front hears nothing of it and does not wait as long as they would."""
    seats = [(rank, 2, f"file:{tmp_path / 'meeting'}") for rank in range(2)]
    client = GroupClient(build, seats, votes=True, silence_timeout_s=8.0)
    sink = queue.Queue[TokenDelta]()
    client.submit(ask("long", LONG), sink.put)
    sink.get(timeout=DEADLINE_S)
    stopped = client.pids[1]
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    assert answer(sink)[1].error == "rank 1 of 2: the engine process gave no sign of life for 8 s"
    client.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in client.pids)


def test_close_ends_what_is_open(group: GroupClient) -> None:
    sink = queue.Queue[TokenDelta]()
    group.submit(ask("long", LONG), sink.put)
    sink.get(timeout=DEADLINE_S)
    group.close()
    assert answer(sink)[1].finish_reason in ("abort", "error")
    with pytest.raises(EngineDead):
        group.submit(ask("late", 3), print)


@pytest.mark.parametrize("meets", [False, True])
def test_one_that_does_not_start_ends_the_start_of_all(meets: bool, tmp_path: Path) -> None:
    """The other is ready, or waits for it at the meeting point."""
    seats = [(0, 2, f"file:{tmp_path / 'meeting'}" if meets else None), (1, 2, "fail")]
    with pytest.raises(EngineDead, match=r"^rank 1 of 2: the engine did not start: no such model"):
        GroupClient(build, seats, votes=meets)


def test_votes_are_counted(tmp_path: Path) -> None:
    client = start(2, tmp_path)
    with closing(Turns(client, 10)) as turns:
        count_votes(client, turns)


def count_votes(client: GroupClient, turns: Turns) -> None:
    """What both ranks report when they have come to rest: each tells of itself when it likes."""
    turns.submit(ask("one", 30))
    deltas = []
    while not turns.quiet:
        deltas += turns.tick()
    assert [t for delta in deltas for t in delta.token_ids] == expected(PROMPT, 30)
    deadline = time.monotonic() + DEADLINE_S
    mine, company = client.rank_stats
    while not (mine.steps == company.steps and mine.votes.get("decode", 0) >= 29):
        assert time.monotonic() < deadline, (mine, company)
        time.sleep(0.05)
        mine, company = client.rank_stats
    assert mine.votes["prompt"] == company.votes["prompt"] == 1
    assert (mine.scheduled_tokens, company.scheduled_tokens) == (3 + 29, 0)
    assert company.steps == company.company_steps
    assert mine.steps - mine.company_steps == 1 + 29
    assert min(mine.vote_wait_s, company.vote_wait_s) > 0


def test_loads() -> None:
    loads = Loads(3)
    assert [loads.place(ask(name, 9, [0] * length)) for name, length in zip("abcd", (5, 2, 4, 1))] == [0, 1, 2, 1]
    loads.grow("b", 7)
    assert loads.tokens == [5, 10, 4]
    loads.leave("a")
    loads.leave("a")
    assert loads.place(ask("e", 9)) == 0
    assert loads.rank_of("b") == 1
    assert loads.rank_of("a") is None


def test_a_total_adds_numbers_and_kinds() -> None:
    busy = [OverlapStats(busy_counts=[2, 0]), OverlapStats(busy_counts=[3])]
    parts = [
        EngineStats(steps=2, votes={"prompt": 1}, size_counts=[1, 1], accepted_at=[4, 1], overlap=busy[0]),
        EngineStats(steps=3, votes={"prompt": 2, "idle": 5}, size_counts=[0, 3], accepted_at=[2], overlap=busy[1]),
    ]
    total = total_stats(parts)
    assert (total.steps, total.votes) == (5, {"prompt": 3, "idle": 5})
    assert (total.size_counts, total.overlap.busy_counts) == ([1, 4], [5, 0])
    assert total.accepted_at == [6, 1]
