"""``headrace serve`` over a voted group of two processes: metrics per rank, a rank that is killed, an orderly end."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cli_models import start, write_model
from served import DEADLINE_S, until
from test_processes import ENDLESS, TEXT, Served, serving, zombie

GROUP = ("--data-parallel-size", "2", "--discipline", "voted", "--threads", "2")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("served"), max_position_embeddings=1 << 18)


def ranks(served: Served) -> list[int]:
    """Process ids, whichever thread of the server started them."""
    tasks = Path(f"/proc/{served.process.pid}/task").iterdir()
    pids = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    return sorted(pid for pid in pids if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes())


def test_a_group_is_served_measured_and_started_again_when_a_rank_dies(model: str) -> None:
    with serving(model, *GROUP) as served:
        before = ranks(served)
        assert len(before) == 2
        body = {"prompt": "x", "max_tokens": 20, "ignore_eos": True, "temperature": 0}
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: served.http.post(TEXT, json=body).json(), range(4)))
        assert len({answer["choices"][0]["text"] for answer in answers}) == 1
        seen = lambda rank: served.metric(f'headrace_votes_total{{outcome="prompt",rank="{rank}"}}')  # noqa: E731
        until(lambda: seen(0) == seen(1) >= 1, "ranks count the same prompt votes")
        until(lambda: served.metric('headrace_vote_wait_seconds_total{rank="1"}') > 0, "rank 1 never waited")
        until(lambda: served.metric('headrace_rank_step_tokens_total{rank="1"}') > 0, "rank 1 never worked")
        with served.http.stream("POST", TEXT, json=ENDLESS) as response:
            lines = response.iter_lines()
            next(lines)
            os.kill(before[1], signal.SIGKILL)
            rest = [line for line in lines if line.startswith("data: ")]
        assert "error" in json.loads(rest[-1][6:])
        until(served.ready, "the group does not come back", within_s=90)
        after = ranks(served)
        assert len(after) == 2
        assert not set(after) & set(before)
        assert served.http.post(TEXT, json=body).json()["usage"]["completion_tokens"] == 20
        assert served.metric("headrace_engine_restarts_total") == 1


def test_nothing_is_left_when_the_server_ends(model: str) -> None:
    with serving(model, *GROUP) as served:
        engines = ranks(served)
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(DEADLINE_S) == 0
        until(lambda: all(zombie(pid) for pid in engines), "an engine is left")
        stderr = served.process.stderr
        assert stderr is not None
        assert b"Traceback" not in stderr.read()


def test_ranks_without_threads_are_refused(model: str) -> None:
    process = start("serve", "-m", model, "--port", "0", "--threads", "1", "--data-parallel-size", "2")
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 2, stderr
    assert b"data_parallel_size: 2 ranks cannot share 1 threads" in stderr


def test_a_killed_front_takes_its_ranks_with_it(model: str) -> None:
    with serving(model, *GROUP) as served:
        engines = ranks(served)
        with served.http.stream("POST", TEXT, json=ENDLESS) as response:
            next(response.iter_lines())
            served.process.kill()
            served.process.wait(DEADLINE_S)
            until(lambda: all(zombie(pid) for pid in engines), "a rank outlives its front")
