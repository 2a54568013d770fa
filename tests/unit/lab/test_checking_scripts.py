"""Scripts that judge a server see what they are there to see: a flood is one, a leak is one, refusals are known."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
DEADLINE_S = 30.0


Load = Callable[[str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.syspath_prepend(str(SCRIPTS))

    def loaded(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return loaded


@pytest.fixture
def script(load: Load) -> ModuleType:
    return load("measure_fairness")


def test_only_a_choice_is_a_token(script: ModuleType) -> None:
    assert script.has_token('data: {"choices": [{"text": "a"}]}')
    for line in ("", ": keep-alive", "data: [DONE]", 'data: {"choices": [], "usage": {}}'):
        assert not script.has_token(line)
    with pytest.raises(script.WrongAnswer, match="the engine failed"):
        script.has_token('data: {"error": {"message": "the engine failed"}}')


def test_a_flood_that_breaks_is_seen(script: ModuleType) -> None:
    calls = iter([None, script.Later("full", 0.0), OSError("reset")])
    broken = threading.Event()

    def ask(on_token: Callable[[], None]) -> None:
        if (fault := next(calls)) is not None:
            if isinstance(fault, OSError):
                broken.set()
            raise fault
        on_token()

    flood = script.Flood(1, ask)
    flood.await_token()
    assert broken.wait(DEADLINE_S)
    flood.stop()
    assert (flood.tokens, flood.answered, flood.refused, flood.faults) == (1, 1, 1, ["OSError: reset"])
    assert flood.standing == 0


def test_no_flood_at_all_is_said(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "BEGIN_S", 0.01)

    def ask(_: Callable[[], None]) -> None:
        raise script.WrongAnswer("refused: no")

    flood = script.Flood(2, ask)
    with pytest.raises(script.WrongAnswer, match="there is no flood"):
        flood.await_token()
    flood.stop()
    assert flood.faults == ["WrongAnswer: refused: no"] * 2


def test_a_leak_is_seen_through_noise(load: Load) -> None:
    script = load("load_server")
    noise = [0, 30 << 20, -(10 << 20), 5 << 20]

    def samples(rate: int) -> list[Any]:
        """A hundred, six seconds apart, ``rate`` bytes a second, 100 requests between two."""
        return [script.Sample(6.0 * i, (1 << 30) + rate * 6 * i + noise[i % 4], 100 * i) for i in range(100)]

    assert script.growth(samples(0)) < script.allowed(samples(0)) == script.REQUEST_BYTES * 9900
    assert script.growth(samples(100_000)) > script.allowed(samples(100_000))
    few = [one._replace(requests=0) for one in samples(0)]
    assert script.allowed(few) == script.SLACK_BYTES


def test_a_refusal_that_nobody_expects_is_no_pass(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = load("check_openai_suite")
    known = next(iter(script.KNOWN))

    def judged(*faults: str, passed: int = 100) -> int:
        cases = ["<testcase classname='c' name='n'/>"] * passed
        cases += [f"<testcase classname='c' name='n'><failure message='{fault}'/></testcase>" for fault in faults]
        monkeypatch.setattr(
            script, "run_suite", lambda _url, _suite, results: results.write_text(f"<suite>{''.join(cases)}</suite>")
        )
        return int(script.main("http://here", tmp_path))

    assert judged(f"Error code: 400 - {known}") == 0
    assert judged("Error code: 400 - messages: unknown field") == 1
    assert judged("Error code: 500 - internal") == 1
    assert judged(f"Error code: 400 - {known}", passed=3) == 1


def test_a_path_that_answers_nothing_is_seen(load: Load, tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    script = load("check_openapi")
    answers = tmp_path / "answers"
    assert script.lacking(answers, script.SERVED, 1) == dict.fromkeys(
        ("/chat/completions", "/completions", "/responses"), 0
    )
    answers.write_text("/completions\n/chat/completions\n/responses\n/models\n")
    assert script.lacking(answers, script.SERVED, 1) == {}
    assert script.lacking(answers, script.SERVED | script.EMBEDDINGS, 1) == {"/embeddings": 0}
