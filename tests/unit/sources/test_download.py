from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from loopback import Site, sha256

from headrace.contract.errors import PullError
from headrace.models.sources import files as files_module
from headrace.models.sources.download import Downloader, Meter, Remote
from headrace.models.sources.files import Checksum, locked, safe_name
from headrace.models.sources.transport import Transport

DATA = os.urandom(3_000_000)
SUM = Checksum("sha256", sha256(DATA))


def downloader(progress: list[tuple[int, int]] | None = None, **transport: Any) -> Downloader:
    meter = Meter(None if progress is None else lambda done, total: progress.append((done, total)))
    return Downloader(Transport(**({"timeout_s": 30.0} | transport)), "m", meter, pause=lambda _: None)


def test_a_file_arrives_whole_and_reports_progress(site: Site, tmp_path: Path) -> None:
    site.files["/f"] = DATA
    progress: list[tuple[int, int]] = []
    target = downloader(progress).fetch(Remote(site.url + "/f", SUM), tmp_path / "f")
    assert target.read_bytes() == DATA
    assert progress[-1] == (len(DATA), len(DATA))
    assert progress == sorted(progress)
    assert not list(tmp_path.glob("*.part"))


def test_a_dying_connection_is_resumed_where_it_broke(site: Site, tmp_path: Path) -> None:
    site.files["/f"] = DATA
    site.die_after["/f"] = [1_000_000, 500_000]
    downloader().fetch(Remote(site.url + "/f", SUM), tmp_path / "f")
    assert site.ranges_of("/f") == [None, "bytes=1000000-", "bytes=1500000-"]
    assert (tmp_path / "f").read_bytes() == DATA


def test_a_partial_file_of_an_earlier_pull_is_continued(site: Site, tmp_path: Path) -> None:
    site.files["/f"] = DATA
    (tmp_path / "f.part").write_bytes(DATA[:700])
    downloader().fetch(Remote(site.url + "/f", SUM), tmp_path / "f")
    assert site.ranges_of("/f") == ["bytes=700-"]
    assert (tmp_path / "f").read_bytes() == DATA


@pytest.mark.parametrize("size", [None, len(DATA)])
def test_a_complete_partial_file_only_needs_its_name(site: Site, tmp_path: Path, size: int | None) -> None:
    site.files["/f"] = DATA
    (tmp_path / "f.part").write_bytes(DATA)
    downloader().fetch(Remote(site.url + "/f", SUM, size), tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == DATA


def test_an_overlong_partial_file_is_started_over(site: Site, tmp_path: Path) -> None:
    site.files["/f"] = DATA
    (tmp_path / "f.part").write_bytes(DATA + b"x")
    downloader().fetch(Remote(site.url + "/f", SUM), tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == DATA


def test_a_server_without_ranges_starts_over(site: Site, tmp_path: Path) -> None:
    site.files["/f"] = DATA
    site.ranges = False
    (tmp_path / "f.part").write_bytes(b"something else")
    downloader().fetch(Remote(site.url + "/f", SUM), tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == DATA


def test_a_server_without_lengths_is_believed_only_with_a_checksum(site: Site, tmp_path: Path) -> None:
    site.files["/f"] = DATA
    site.lengths = False
    downloader().fetch(Remote(site.url + "/f", SUM), tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == DATA


def test_wrong_bytes_are_removed_and_the_next_pull_works(site: Site, tmp_path: Path) -> None:
    site.files["/f"] = DATA[:-1] + bytes([DATA[-1] ^ 1])
    with pytest.raises(PullError, match=f"f: wrong sha256.*{SUM.hex}"):
        downloader().fetch(Remote(site.url + "/f", SUM), tmp_path / "f")
    assert not list(tmp_path.iterdir())
    site.files["/f"] = DATA
    downloader().fetch(Remote(site.url + "/f", SUM), tmp_path / "f")


def test_a_wrong_size_is_refused_before_the_bytes(site: Site, tmp_path: Path) -> None:
    site.files["/f"] = DATA
    with pytest.raises(PullError, match="3000000 bytes offered, 7 expected"):
        downloader().fetch(Remote(site.url + "/f", SUM, 7), tmp_path / "f")


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_final_status_is_not_tried_again(site: Site, tmp_path: Path, status: int) -> None:
    site.statuses["/f"] = [status] * 9
    with pytest.raises(PullError, match=f"/f: HTTP {status}"):
        downloader().fetch(Remote(site.url + "/f"), tmp_path / "f")
    assert len(site.seen) == 1


def test_a_passing_status_is_tried_again(site: Site, tmp_path: Path) -> None:
    site.files["/f"] = DATA
    site.statuses["/f"] = [503, 429]
    downloader().fetch(Remote(site.url + "/f", SUM), tmp_path / "f")
    assert len(site.seen) == 3


def test_a_server_that_keeps_failing_is_given_up(site: Site, tmp_path: Path) -> None:
    site.files["/f"] = DATA
    site.die_after["/f"] = [10] * 99
    with pytest.raises(PullError, match=r"/f: .*the connection ended at byte 50 of 3000000; pull again to resume"):
        downloader().fetch(Remote(site.url + "/f", SUM), tmp_path / "f")
    assert len(site.seen) == 5
    assert (tmp_path / "f.part").read_bytes() == DATA[:50]


def test_progress_earns_more_attempts(site: Site, tmp_path: Path) -> None:
    site.files["/f"] = big = os.urandom(8 << 20)
    site.die_after["/f"] = [(1 << 20) + 1] * 7
    downloader().fetch(Remote(site.url + "/f", Checksum("sha256", sha256(big))), tmp_path / "f")
    assert len(site.seen) == 8


def test_a_silent_server_is_given_up(site: Site, tmp_path: Path) -> None:
    site.files["/f"] = DATA
    site.hang_after["/f"] = 100
    with pytest.raises(PullError, match="timed out"):
        downloader(timeout_s=0.05).fetch(Remote(site.url + "/f", SUM), tmp_path / "f")


def test_a_dripping_server_is_given_up(site: Site, tmp_path: Path) -> None:
    site.files["/f"] = DATA
    site.drip.add("/f")
    with pytest.raises(PullError, match=r"only \d+ bytes in"):
        downloader(timeout_s=0.5).fetch(Remote(site.url + "/f", SUM), tmp_path / "f")


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(PullError, match=r"127\.0\.0\.1:9/f: .*refused"):
        downloader().fetch(Remote("http://127.0.0.1:9/f"), tmp_path / "f")


def test_a_redirect_is_followed_and_keeps_the_token_at_home(site: Site, tmp_path: Path) -> None:
    site.files["/there"] = DATA
    site.redirects["/near"] = "/there"
    site.redirects["/far"] = site.url.replace("127.0.0.1", "localhost") + "/there"
    host = site.url.removeprefix("http://")
    for place, expected in {"/near": "Bearer secret", "/far": None}.items():
        site.seen.clear()
        downloader(bearer={host: "secret"}).fetch(Remote(site.url + place, SUM), tmp_path / place[1:])
        assert site.seen[0][2] == "Bearer secret"
        assert site.seen[1] == ("/there", None, expected)


def test_a_redirect_to_a_local_file_is_refused(site: Site, tmp_path: Path) -> None:
    site.redirects["/f"] = "file:///etc/passwd"
    with pytest.raises(PullError):
        downloader().fetch(Remote(site.url + "/f"), tmp_path / "f")
    assert not (tmp_path / "f").exists()


def test_a_password_in_the_address_becomes_a_header(site: Site, tmp_path: Path) -> None:
    site.files["/f"] = DATA
    address = site.url.replace("http://", "http://me:p%40ss@") + "/f"
    downloader().fetch(Remote(address, SUM), tmp_path / "f")
    assert site.seen[0][2] == "Basic bWU6cEBzcw=="


def test_no_space_is_noticed_before_the_transfer(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.files["/f"] = DATA
    usage = files_module.shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(files_module.shutil, "disk_usage", lambda _: usage._replace(free=1234))
        with pytest.raises(PullError, match=r"no space to write .*f\.part: 3000000 bytes needed, 1234 free"):
            downloader().fetch(Remote(site.url + "/f", SUM), tmp_path / "f")
    downloader().fetch(Remote(site.url + "/f", SUM), tmp_path / "f")


def _limit_files() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))


def test_a_disk_that_fills_up_keeps_what_fits(site: Site, tmp_path: Path) -> None:
    site.files["/f"] = DATA
    result = run_pull(site, tmp_path, preexec_fn=_limit_files)
    assert "PullError" in result.stderr
    assert f"no space to write {tmp_path}/f.part" in result.stderr
    assert "bytes free" in result.stderr
    assert (tmp_path / "f.part").read_bytes() == DATA[:1_000_000]
    assert run_pull(site, tmp_path).returncode == 0
    assert (tmp_path / "f").read_bytes() == DATA
    assert site.ranges_of("/f")[-1] == "bytes=1000000-"


PULL = Path(__file__).with_name("pull_process.py")


def command(site: Site, folder: Path) -> list[str]:
    return [sys.executable, str(PULL), site.url + "/f", SUM.hex, str(folder)]


def run_pull(site: Site, folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(site, folder), capture_output=True, text=True, timeout=60, **options)


def test_a_killed_pull_is_resumed_by_the_next(site: Site, tmp_path: Path) -> None:
    site.files["/f"] = DATA
    site.hang_after["/f"] = 2_000_000
    process = subprocess.Popen(command(site, tmp_path))
    part = tmp_path / "f.part"
    end = time.monotonic() + 30
    while not (part.exists() and part.stat().st_size == 2_000_000):
        assert time.monotonic() < end
        time.sleep(0.01)
    process.kill()
    process.wait()
    del site.hang_after["/f"]
    assert run_pull(site, tmp_path).returncode == 0
    assert site.ranges_of("/f") == [None, "bytes=2000000-"]
    assert (tmp_path / "f").read_bytes() == DATA


def test_two_processes_pull_once(site: Site, tmp_path: Path) -> None:
    site.files["/f"] = DATA
    both = [subprocess.Popen(command(site, tmp_path)) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    assert (tmp_path / "f").read_bytes() == DATA
    assert len(site.seen) == 1


def test_a_held_lock_has_a_deadline(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "lock", "m"),
        pytest.raises(PullError, match="another process holds"),
        locked(tmp_path / "lock", "m", deadline_s=0.05),
    ):
        pass


def test_other_disk_faults_are_not_called_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="broken"), files_module.disk_errors(tmp_path / "f", "m"):
        raise OSError(errno.EIO, "broken")


@pytest.mark.parametrize(
    "name", ["../x", "a/../x", "/etc/passwd", "a/./b", "", ".", "..", "a\\..\\b", "C:x", "a\0b", "a/.."]
)
def test_names_that_lead_out_are_refused(name: str) -> None:
    with pytest.raises(PullError, match="refused the file name"):
        safe_name(name, "m")


def test_ordinary_names_pass() -> None:
    name = "sub/model-00001-of-00002.safetensors"
    assert str(safe_name(name, "m")) == name
