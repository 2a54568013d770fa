"""Settings beyond what the core, the clocks or the system can take are refused with their name, before any work."""

from __future__ import annotations

import dataclasses
import json
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from tiny_models import CONFIGS

from headrace.api.launch import launch
from headrace.api.ranks import thread_shares
from headrace.config import EngineConfig, resolve
from headrace.config_checks import BYTE_COUNTS
from headrace.contract.errors import ConfigError, ModelError
from headrace.contract.layout import KVLayout, group_layers
from headrace.contract.sizes import parse_size
from headrace.kernels.resolve import resolve_ops
from headrace.kernels.runtime import configure
from headrace.models.registry import load_model, require_memory
from headrace.models.weights import open_checkpoint
from headrace.worker.memory import free_memory_bytes, size_pool


def settings_of(kind: str) -> list[str]:
    """All settings of one kind, optional ones too."""
    sections = [getattr(EngineConfig(), section.name) for section in dataclasses.fields(EngineConfig)]
    return [f.name for section in sections for f in dataclasses.fields(section) if str(f.type).split(" ")[0] == kind]


@pytest.mark.parametrize("name", settings_of("int"))
@pytest.mark.parametrize("value", [1 << 31, 1 << 40, 10**20, -(10**20)])
def test_whole_numbers_beyond_the_core(name: str, value: int) -> None:
    if name in BYTE_COUNTS and 0 < value < 1 << 63:
        assert resolve({name: value})
        return
    with pytest.raises(ConfigError, match=f"^{name}: "):
        resolve({name: value})


@pytest.mark.parametrize("name", settings_of("float"))
@pytest.mark.parametrize("value", [1e10, inf, nan, -1.0, 10**400])
def test_times_and_shares_beyond_sense(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: "):
        resolve({name: value})


@pytest.mark.parametrize("name", settings_of("str"))
def test_zero_bytes(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: "):
        resolve({name: "a\0b"})


@pytest.mark.parametrize(("name", "most"), [("num_threads", 1024), ("step_timeout_s", 86_400)])
def test_the_limit_itself_is_allowed(name: str, most: int) -> None:
    assert resolve({name: most})
    for odd in (0, most + 1):
        with pytest.raises(ConfigError, match=f"^{name}: "):
            resolve({name: odd})


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("num_threads", [0, 1025])
def test_threads_that_come_from_the_environment(backend: str, num_threads: int) -> None:
    with pytest.raises(ConfigError, match="num_threads"):
        configure(backend, num_threads)


@pytest.fixture
def dummy(tmp_path: Path) -> Any:
    """Writes a model's configuration; gives its path."""

    def write(name: str = "llama", **changes: Any) -> Path:
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**CONFIGS[name], **changes}))
        return path

    return write


@pytest.mark.parametrize("model", ["llama", "qwen2-sliding"])
@pytest.mark.parametrize("max_model_len", [64, 65])
def test_a_pool_for_one_sequence_of_few_blocks(dummy: Any, model: str, max_model_len: int) -> None:
    spec = f"dummy:{dummy(model)}"
    config = resolve(
        {"model": spec, "max_seqs": 1, "block_size": 64, "max_model_len": max_model_len, "backend": "reference"}
    )
    launched = launch(config)
    launched.engine.close()
    assert launched.max_model_len == max_model_len


def test_a_pool_too_small_for_one_block_each() -> None:
    layout = KVLayout(1, 1, 8, group_layers([0]))
    block_bytes = layout.block_bytes(64, "int16")
    config = resolve({"max_seqs": 1, "block_size": 64, "kv_memory": 2 * block_bytes})
    assert size_pool(layout, config, 64, 0).num_blocks == 2
    config = resolve({"max_seqs": 1, "block_size": 64, "kv_memory": 2 * block_bytes - 1})
    with pytest.raises(ConfigError, match=r"kv_memory: .*at least 2"):
        size_pool(layout, config, 64, 0)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    "changes", [{"num_hidden_layers": 1024, "hidden_size": 4096}, {"max_position_embeddings": 16_777_216}]
)
def test_a_model_larger_than_memory(dummy: Any, changes: dict[str, int], exact: bool) -> None:
    checkpoint = open_checkpoint(dummy(**changes), dummy_seed=0)
    with pytest.raises(ModelError, match=r"need \d+\.\d\d GiB of memory, 0\.50 GiB are free"):
        require_memory(checkpoint, 1 << 29, exact=exact)


def test_launch_asks_for_memory_before_it_loads(dummy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.api.launch.free_memory_bytes", lambda: 1000)
    with pytest.raises(ModelError, match=r"config\.json: its weights"):
        launch(resolve({"model": f"dummy:{dummy()}", "backend": "reference"}))


@pytest.mark.parametrize("model", CONFIGS)
def test_the_estimate_is_what_is_loaded(dummy: Any, model: str) -> None:
    """Weights as float32; the fixed part is the rope tables while they are made."""
    checkpoint = open_checkpoint(dummy(model), dummy_seed=0)
    load_model(checkpoint, resolve_ops("reference"))
    weights = sum(checkpoint.tensor(name).nbytes for name in checkpoint.names())
    config = CONFIGS[model]
    head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    num_tables = 2 if "rope_local_base_freq" in config else 1
    needed = weights + int((num_tables + 1.5) * 4 * config["max_position_embeddings"] * head_dim)
    require_memory(checkpoint, needed)
    with pytest.raises(ModelError):
        require_memory(checkpoint, needed - 1)


def test_a_control_groups_file_pages_are_free(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    (tmp_path / "memory.max").write_text("4096000\n")
    (tmp_path / "memory.current").write_text("4000000\n")
    (tmp_path / "memory.stat").write_text("anon 1000000\ninactive_file 2000000\nactive_file 500000\n")
    assert free_memory_bytes(tmp_path / "meminfo", tmp_path) == 2_596_000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory_bytes(tmp_path / "meminfo", tmp_path) == 8_192_000


def test_an_unknown_setting_is_named_with_its_file_and_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "h.toml"
    for text in ("al_interval = 0\n", "[scheduler]\nal_interval = 0\n"):
        path.write_text(text)
        with pytest.raises(
            ConfigError, match=rf"^al_interval: no such setting \({path}\); did you mean .*all_interval"
        ):
            resolve({}, path)
    with pytest.raises(ConfigError, match=r"^kv_dtipe: no such setting; did you mean kv_dtype"):
        resolve({"kv_dtipe": 1})
    with pytest.raises(ConfigError, match=r"^zzzzzz: no such setting$"):
        resolve({"zzzzzz": 1})


@pytest.mark.parametrize("text", ["9" * 400, "9" * 400 + "GiB", "4194305T"])
def test_sizes_beyond_any_memory(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^kv_memory: is beyond any memory"):
        parse_size("kv_memory", text)
    assert parse_size("kv_memory", "2TiB") == 2 << 40


def test_too_many_ranks_and_those_of_split_are_told_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"Use at most 2, or num_threads \(--threads\) 3"):
        thread_shares(resolve({"data_parallel_size": 3, "num_threads": 2}))
    with pytest.raises(ConfigError, match="leave it out"):
        resolve({"data_parallel_size": 2, "discipline": "split"})
