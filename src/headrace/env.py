"""The only reader of environment variables. Nothing else in the package looks at ``os.environ``.

Each function reads one name, at the time of the call. Settings that users are meant to change belong in
``config.py``; these are places, credentials and switches for debugging.
"""

from __future__ import annotations

import os
from pathlib import Path

from .contract.errors import ConfigError
from .contract.sizes import MAX_THREADS

HUB = "https://huggingface.co"


def cache_dir() -> Path:
    """``HEADRACE_CACHE``: where pulled models are kept. Default: ``headrace`` in ``XDG_CACHE_HOME`` or
    ~/.cache.
    """
    if own := os.environ.get("HEADRACE_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "headrace"


def test_data() -> Path | None:
    """``HEADRACE_TEST_DATA``: folder with traces, evaluation sets and golden checkpoints, for tests only."""
    value = os.environ.get("HEADRACE_TEST_DATA")
    return Path(value) if value else None


def kv_store() -> str | None:
    """``HEADRACE_KV_STORE``: where the KV store is, as ``--kv-store`` says it. Default: ``kv`` in the cache folder."""
    return os.environ.get("HEADRACE_KV_STORE") or None


def num_threads() -> int | None:
    """``HEADRACE_NUM_THREADS``: threads of the kernel pool. Default: the engine decides."""
    value = os.environ.get("HEADRACE_NUM_THREADS")
    if not value:
        return None
    if not value.isdecimal() or not 1 <= int(value) <= MAX_THREADS:
        raise ConfigError("HEADRACE_NUM_THREADS", f"must be a whole number from 1 to {MAX_THREADS}, not {value!r}")
    return int(value)


def isa() -> str | None:
    """``HEADRACE_ISA``: instruction set of the kernels (``scalar``, ``avx2``, ...). Default: the best there
    is.
    """
    return (os.environ.get("HEADRACE_ISA") or "").lower() or None


def overlap_checks() -> bool:
    """``HEADRACE_OVERLAP_CHECKS``: 1 refuses hidden waits inside launches and poisons outputs after their turn."""
    value = os.environ.get("HEADRACE_OVERLAP_CHECKS") or "0"
    if value not in ("0", "1"):
        raise ConfigError("HEADRACE_OVERLAP_CHECKS", f"must be 0 or 1, not {value!r}")
    return value == "1"


def hub_endpoint() -> str:
    """``HF_ENDPOINT``: address of the model hub that ``hf:`` names refer to."""
    return (os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")


def hub_token() -> str | None:
    """``HF_TOKEN``: credential for gated models of the hub. Sent to the hub's own host only."""
    return os.environ.get("HF_TOKEN") or None


def pip_options() -> dict[str, str]:
    """``PIP_*``: pip's options as given in the environment, by option name (``index-url``)."""
    options = {name[4:]: value for name, value in os.environ.items() if name.startswith("PIP_") and value}
    return {name.lower().replace("_", "-"): value for name, value in options.items()}


def config_dirs() -> tuple[list[Path], Path]:
    """``XDG_CONFIG_DIRS`` and ``XDG_CONFIG_HOME``: the system's and the user's folders of configuration
    files.
    """
    system = os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    user = os.environ.get("XDG_CONFIG_HOME")
    return [Path(p) for p in system.split(os.pathsep) if p], Path(user) if user else Path.home() / ".config"
