"""Rotary settings: what the configuration may ask for, in both its spellings. Computes no angles."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.contract.errors import ConfigError

from .config_reader import MAX_NUMBER, ConfigReader

THETA, LOCAL_THETA, DEFAULT_LOCAL_THETA = "rope_theta", "rope_local_base_freq", 1e4
ROPE_TYPES = {name: name for name in ("default", "linear", "llama3", "frequency_factors")}


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """One rotary table. ``kind`` says which of the other fields count (see ``tensor_ops``).

    ``factors`` divides each frequency, one entry per pair of dims: GGUF files store scaling rules that way.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 0
    factors: tuple[float, ...] = ()


def read_ropes(
    reader: ConfigReader, head_dim: int, two_bases: bool, default_theta: float
) -> tuple[RopeConfig, RopeConfig]:
    """``(full, sliding)`` settings; the same object twice unless the family has ``two_bases``.

    Spellings: ``rope_theta`` + ``rope_scaling`` (+ ``rope_local_base_freq``), or ``rope_parameters``, which
    for two bases holds one object per layer type. A configuration with both must say the same in both.
    """
    theta = reader.number(THETA, default_theta)
    parameters = reader.section("rope_parameters")
    if parameters is not None:
        ropes = _read_parameters(reader, parameters, head_dim, two_bases, theta)
    else:
        full_rope = _read(theta, reader.section("rope_scaling"), head_dim)
        # Scaling stretches the global layers only: a window never sees far positions.
        local_rope = RopeConfig(reader.number(LOCAL_THETA, DEFAULT_LOCAL_THETA)) if two_bases else full_rope
        ropes = full_rope, local_rope
    if not two_bases and ropes[0] != ropes[1]:
        raise ConfigError("rope_parameters", "this architecture has one rotary base for all layers")
    return ropes


def _read_parameters(
    reader: ConfigReader, parameters: ConfigReader, head_dim: int, two_bases: bool, theta: float
) -> tuple[RopeConfig, RopeConfig]:
    """The newer spelling, in which the older keys are defaults. ``theta``: the base of the full layers then."""
    section = parameters.section("full_attention") or parameters
    full = _read(_theta(section, reader, THETA, theta), section, head_dim)
    older = reader.section("rope_scaling")
    repeated = reader.raw("rope_scaling") == reader.raw("rope_parameters")
    if older is not None and not repeated and _read(full.theta, older, head_dim) != full:
        raise ConfigError("rope_scaling", "says something else than rope_parameters")
    local = parameters.section("sliding_attention")
    key, default = (LOCAL_THETA, DEFAULT_LOCAL_THETA) if two_bases else (THETA, theta)
    if local is not None:
        return full, _read(_theta(local, reader, key, default), local, head_dim)
    if reader.number(key, full.theta) != full.theta:
        raise ConfigError(key, f"differs from the {full.theta:g} that rope_parameters gives every layer")
    return full, full


def _theta(section: ConfigReader, reader: ConfigReader, key: str, default: float) -> float:
    """The base that ``section`` names, else the older ``key``. Raises ConfigError where both are there and differ."""
    older = reader.number(key, default)
    theta = section.number(THETA, older)
    if reader.raw(key) is not None and theta != older:
        raise ConfigError(section.name(THETA), f"{theta:g} differs from {key}, {older:g}")
    return theta


def _read(theta: float, scaling: ConfigReader | None, head_dim: int) -> RopeConfig:
    if scaling is None:
        return RopeConfig(theta)
    scaling.refuse({"partial_rotary_factor": (1, 1.0)})
    key = "rope_type" if scaling.raw("rope_type") is not None else "type"
    kind = scaling.choice(key, ROPE_TYPES, "default")
    if kind == "linear":
        return RopeConfig(theta, kind, factor=scaling.number("factor"))
    if kind == "llama3":
        return _read_llama3(theta, scaling)
    if kind == "frequency_factors":
        return RopeConfig(theta, kind, factors=_read_factors(scaling, head_dim // 2))
    return RopeConfig(theta)


def _read_llama3(theta: float, scaling: ConfigReader) -> RopeConfig:
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    if low >= high:
        raise ConfigError(scaling.name("high_freq_factor"), f"must be above low_freq_factor ({low})")
    positions = scaling.integer("original_max_position_embeddings")
    return RopeConfig(theta, "llama3", scaling.number("factor"), low, high, positions)


def _read_factors(scaling: ConfigReader, num_pairs: int) -> tuple[float, ...]:
    factors = scaling.raw("factors")
    if not isinstance(factors, list) or len(factors) != num_pairs:
        raise ConfigError(scaling.name("factors"), f"must be a list of {num_pairs} numbers")
    if not all(isinstance(f, int | float) and 0 < f < MAX_NUMBER for f in factors):
        raise ConfigError(scaling.name("factors"), "must hold numbers above 0 only")
    return tuple(float(f) for f in factors)
