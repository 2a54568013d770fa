"""The cost curve on disk: its key, its lifetime, and files that are not what they should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace._core import CostModel
from headrace.worker.cost_curve import Curve, CurveKey, load, measure, save

KEY = CurveKey("smollm2", "some processor, 4 threads", "full graphs")


def curve_at(when: float) -> Curve:
    return Curve(KEY, [1, 2, 4], [1.0, 1.5, 2.0], when)


def test_kept_for_its_lifetime(tmp_path: Path) -> None:
    assert load(tmp_path, KEY, [1, 2, 4], now=0.0) is None
    save(tmp_path / "deeper", curve_at(1000.0))
    folder = tmp_path / "deeper"
    assert load(folder, KEY, [1, 2, 4], now=1000.0 + 3599) == curve_at(1000.0)
    assert load(folder, KEY, [1, 2, 4], now=1000.0 + 3600) is None
    assert load(folder, KEY, [1, 2, 4], now=999.0) is None  # from the future: a clock was set
    assert load(folder, KEY, [1, 2, 4], lifetime_s=10, now=1011.0) is None


@pytest.mark.parametrize("field", ["model", "machine", "mode"])
def test_another_key_is_another_curve(tmp_path: Path, field: str) -> None:
    save(tmp_path, curve_at(0.0))
    other = CurveKey(**{"model": KEY.model, "machine": KEY.machine, "mode": KEY.mode} | {field: "other"})
    assert load(tmp_path, other, [1, 2, 4], now=1.0) is None
    assert load(tmp_path, KEY, [1, 2], now=1.0) is None  # other sizes


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"key": 1}'])
def test_a_damaged_file_is_measured_again(tmp_path: Path, content: bytes) -> None:
    (tmp_path / KEY.file_name).write_bytes(content)
    assert load(tmp_path, KEY, [1, 2, 4], now=0.0) is None


def test_a_disk_that_refuses_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    save(tmp_path / "file", curve_at(0.0))


def test_measured_by_medians_after_a_warm_up() -> None:
    now, calls = [0.0], []
    durations = iter([9.0, 0.002, 0.004, 0.003, 9.0, 0.005, 0.050, 0.006])

    def run(size: int) -> None:
        calls.append(size)
        now[0] += next(durations)

    curve = measure(KEY, [2, 4], run, repeats=3, clock=lambda: now[0], wall_time=5.0)
    assert calls == [2] * 4 + [4] * 4
    assert curve.times_ms == pytest.approx([3.0, 6.0])
    assert curve.measured_at == 5.0
    assert CostModel(curve.sizes, curve.times_ms).snapshot().time_ms(3, 1) == pytest.approx(6.0)


def test_a_curve_that_cannot_be_kept_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("scripted")))
    save(tmp_path, curve_at(0.0))
    assert not list(tmp_path.iterdir())
