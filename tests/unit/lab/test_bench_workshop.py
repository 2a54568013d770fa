"""The workshop of ``bench peers``: model files that are there are whole. No peer is started."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.lab.bench import peers_bench
from headrace.lab.bench.contenders import Contender
from headrace.lab.bench.peers_bench import SOURCE_KIND, Workshop

CONTENDER = Contender("a", "peer_fake", "nowhere", SOURCE_KIND)


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    source = tmp_path / "model.Q4_1.gguf"
    source.write_bytes(bytes(range(100)))
    return Workshop(tmp_path / "cache", source, lambda _: None)


def test_a_copy_that_broke_off_is_not_taken_for_the_model(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes()[:50])
        raise OSError("no space left")

    with monkeypatch.context() as broken:
        broken.setattr(shutil, "copyfile", half)
        with pytest.raises(OSError, match="no space"):
            workshop.file_of(CONTENDER)
    assert Path(workshop.file_of(CONTENDER)).read_bytes() == workshop.source.read_bytes()


@pytest.mark.parametrize(("threads", "told"), [(1, "1"), (3, "3"), (None, None)])
def test_an_engine_that_takes_no_argument_is_told_the_threads_all_the_same(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, threads: int | None, told: str | None
) -> None:
    started: list[dict[str, str]] = []
    monkeypatch.setattr(peers_bench, "ensure", lambda *_: Path("python"))
    monkeypatch.setattr(peers_bench, "PeerProcess", lambda *of: started.append(of[3]))
    vllm = Contender("v", "peer_vllm", "vllm", "hf")
    replace(workshop, threads=threads).start(vllm)
    assert started[0].get("OMP_NUM_THREADS") == told
    assert started[0]["HF_HUB_OFFLINE"] == "1"


def test_a_copy_is_made_once(workshop: Workshop) -> None:
    made = Path(workshop.file_of(CONTENDER))
    made.write_bytes(b"kept")
    assert workshop.file_of(CONTENDER) == str(made)
    assert made.read_bytes() == b"kept"
    assert [path.name for path in made.parent.iterdir()] == [made.name]
