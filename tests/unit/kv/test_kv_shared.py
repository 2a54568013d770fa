"""Shared memory: a name only as long as it is needed, and what a killed process left goes at the next start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.contract.errors import StoreError
from headrace.kv.shared import PREFIX, SharedMemory, map_shared, sweep_orphans

HOLDER = """
import sys, time
from pathlib import Path
from headrace.kv.shared import SharedMemory
shared = SharedMemory(8192, Path(sys.argv[1]))
print(shared.path, flush=True)
time.sleep(600)
"""


def test_both_see_the_same_bytes_and_the_name_goes(tmp_path: Path) -> None:
    shared = SharedMemory(8192, tmp_path)
    assert shared.path.stat().st_mode & 0o777 == 0o600
    assert bytes(shared.memory) == bytes(8192)
    theirs = map_shared(shared.path, 8192)
    shared.forget_name()
    shared.forget_name()
    assert list(tmp_path.iterdir()) == []
    shared.memory[100] = 7
    assert theirs[100] == 7


def test_what_a_killed_process_left_is_taken_away_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    mine = SharedMemory(8192, tmp_path)
    (tmp_path / "something-else").touch()
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "something-else")
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        left = Path(holder.stdout.readline().strip())
        assert sweep_orphans(tmp_path) == 0
        assert left.exists()
        holder.kill()
    assert sweep_orphans(tmp_path) == 1
    assert not left.exists()
    assert mine.path.exists()
    assert (tmp_path / "something-else").exists()


def test_memory_that_is_not_there_is_refused_now(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"{tmp_path}.*MiB of shared memory"):
        SharedMemory(1 << 60, tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreError, match="nowhere"):
        SharedMemory(8192, tmp_path / "nowhere")
    with pytest.raises(StoreError, match="cannot be mapped"):
        map_shared(tmp_path / "nothing", 8192)
