"""Research scripts refuse mistakes by the option's name, before any work."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from cli_models import write_model

from headrace.contract.errors import ConfigError
from headrace.lab.script_arguments import positive, positives, run_script, v41_source

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_numbers_above_zero() -> None:
    assert positives("1, 8,32") == [1, 8, 32]
    for text in ("0", "-1", "x", "", "1.5"):
        with pytest.raises(argparse.ArgumentTypeError):
            positive(text)


@pytest.mark.parametrize(
    ("name", "arguments", "field"),
    [
        ("v41_truncation", "--model v41-mini --keep 64", "--keep"),
        ("v41_truncation", "--model v41-mini --tokens 5000", "--tokens"),
        ("v41_truncation", "--model /nope", "--model"),
        ("v41_truncation", "--model DENSE", "--model"),
        ("v41_paths", "--model DENSE", "--model"),
        ("v41_mini_quality", "--model DENSE", "--model"),
        ("v41_expert_balance", "--model DENSE", "--model"),
        ("v41_expert_balance", "--requests 2 --tokens 20 --ranks 2", "--tokens"),
        ("v41_expert_balance", "--ranks 9", "--ranks"),
        ("v41_expert_balance", "--window 41", "--window"),
        ("train_v41_mini", "--out FILE", "--out"),
        ("train_v41_mini", "--out new --state FOLDER", "--state"),
    ],
)
def test_a_mistake_is_named(
    name: str, arguments: str, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    places = {"DENSE": write_model(tmp_path / "dense"), "FILE": str(tmp_path / "file"), "FOLDER": str(tmp_path)}
    monkeypatch.setattr(sys, "argv", [name, *(places.get(word, word) for word in arguments.split())])
    with pytest.raises(ConfigError) as caught:
        script(name).main()
    assert caught.value.field == field


def test_the_vocabulary_must_be_that_of_the_texts() -> None:
    assert v41_source("v41-mini", vocab=2048).name == "v41-mini"
    with pytest.raises(ConfigError, match="--model: v41-mini has 2048 ids, not the 1024"):
        v41_source("v41-mini", vocab=1024)


@pytest.mark.parametrize(("error", "code", "words"), [(ConfigError("--x", "no"), 2, "error: --x: no\n"), (None, 0, "")])
def test_what_is_wrong_is_one_line(
    error: Exception | None, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> None:
        if error is not None:
            raise error

    with pytest.raises(SystemExit) as caught:
        run_script(main)
    assert (caught.value.code, capsys.readouterr().err) == (code, words)


def test_an_interrupt_ends_as_a_shell_expects_and_a_defect_is_shown() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    def broken() -> None:
        raise AssertionError("a defect")

    with pytest.raises(SystemExit) as caught:
        run_script(interrupted)
    assert caught.value.code == 130
    with pytest.raises(AssertionError):
        run_script(broken)
