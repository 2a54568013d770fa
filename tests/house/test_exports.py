"""What ``headrace`` offers, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

import headrace


def test_all_is_what_can_be_imported() -> None:
    for name in headrace.__all__:
        assert getattr(headrace, name).__name__ == name
    public = {name for name in dir(headrace) if not name.startswith("_")}
    objects = {name for name in public if not isinstance(getattr(headrace, name), ModuleType)}
    assert objects - {"Any", "TYPE_CHECKING", "annotations", "import_module"} == set(headrace.__all__)


def test_star_import_brings_the_same() -> None:
    space: dict[str, object] = {}
    exec("from headrace import *", space)
    assert set(space) - {"__builtins__"} == set(headrace.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        headrace.Nonsense  # noqa: B018


@pytest.mark.parametrize(
    "statement",
    [
        "import headrace",
        "from headrace import SamplingParams, EngineConfig",
        "from headrace.cli.main import build_app; build_app()",
        "from headrace.cli.checks import run_checks; run_checks(True)",
        "from headrace.models.sources import list_models; list_models()",
        "from headrace.api.async_llm import AsyncLLM; from headrace.api.http.server import Server",
    ],
)
def test_light_doors_do_not_import_torch(statement: str) -> None:
    code = f"{statement}\nimport sys\nsys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
