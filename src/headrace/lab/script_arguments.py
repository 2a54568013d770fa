"""What research scripts take from the command line, and how they say what is wrong with it: one line that names the
option, before any work, and no traceback. Must never hide a defect: other exceptions are shown whole.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from headrace.contract.errors import ConfigError, HeadraceError, ModelError, PullError
from headrace.models.deepseek_v41.config import MODEL_TYPE
from headrace.models.sources import ModelSource, resolve_model
from headrace.models.weights import open_checkpoint

BAD_INPUT_CODE, INTERRUPTED_CODE = 2, 130


def run_script(main: Callable[[], None]) -> NoReturn:
    """Runs a script to its end. Errors that say what to do become one line and code 2, Ctrl-C becomes code 130."""
    try:
        main()
    except (HeadraceError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        sys.exit(BAD_INPUT_CODE)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_CODE)
    sys.exit(0)


def positive(text: str) -> int:
    """An option's whole number above zero, as argparse's ``type``."""
    if not text.strip().isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, got {text!r}")
    return int(text)


def positives(text: str) -> list[int]:
    """The same for some of them, separated by commas."""
    return [positive(part) for part in text.split(",")]


def v41_source(spec: str, *, vocab: int | None = None) -> ModelSource:
    """The V4.1 model that ``--model`` names, looked at and not loaded; ``vocab``: the ids it must have.

    Raises ConfigError for what is no model, or one of another family or vocabulary.
    """
    try:
        source = resolve_model(spec, offline=True)
        config = open_checkpoint(Path(source.path), dummy_seed=0 if source.dummy else None).config
    except (PullError, ModelError) as error:
        raise ConfigError("--model", str(error)) from error
    if config.get("model_type") != MODEL_TYPE:
        raise ConfigError("--model", f"{spec} is no DeepSeek-V4.1 model; v41-mini is one, and in the package")
    has = config.get("text_config", {}).get("vocab_size")
    if vocab is not None and has != vocab:
        reason = f"{spec} has {has} ids, not the {vocab} of the texts it is measured on: take v41-mini, or a folder of"
        raise ConfigError("--model", f"{reason} scripts/train_v41_mini.py")
    return source
