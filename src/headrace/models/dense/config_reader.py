"""Typed, bounded access to a ``config.json`` dictionary. Knows no model; every error names the key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headrace.contract.errors import ConfigError

_REQUIRED: Any = object()
MAX_NUMBER = 1e38


@contextmanager
def configuration_of(source: str) -> Iterator[None]:
    """Errors of the body name, beside the key, whose configuration has it. ``source`` as a checkpoint's."""
    try:
        yield
    except ConfigError as error:
        words = str(error).removeprefix(f"{error.field}: ")
        raise ConfigError(error.field, f"{words} (in the configuration of {source})") from error


class ConfigReader:
    """Reads values out of one JSON object. ``prefix`` locates it inside the whole configuration.

    ``null`` counts as absent, as it does in configurations written by the field's tools.
    """

    def __init__(self, values: Mapping[str, Any], prefix: str = "") -> None:
        self._values, self._prefix = values, prefix

    def name(self, key: str) -> str:
        return self._prefix + key

    def has(self, key: str) -> bool:
        """Whether the key is there, be it with ``null``."""
        return key in self._values

    def raw(self, key: str) -> Any:
        return self._values.get(key)

    def integer(self, key: str, default: Any = _REQUIRED, *, most: int = 1 << 24) -> int:
        """A whole number from 1 to ``most``."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ConfigError(self.name(key), f"must be a whole number from 1 to {most}, not {value!r}")
        return value

    def number(self, key: str, default: Any = _REQUIRED) -> float:
        """A number above zero that float32 can hold."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < MAX_NUMBER:
            raise ConfigError(self.name(key), f"must be a number above 0 and below {MAX_NUMBER}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise ConfigError(self.name(key), f"must be true or false, not {value!r}")
        return value

    def choice(self, key: str, known: Mapping[str, str], default: Any = _REQUIRED) -> str:
        """Our word for one of the ``known`` spellings."""
        value = self._get(key, default)
        if not isinstance(value, str) or value not in known:
            raise ConfigError(self.name(key), f"{value!r} is not supported; known: {sorted(known)}")
        return known[value]

    def section(self, key: str) -> ConfigReader | None:
        """The object under ``key``, or None when it is absent."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise ConfigError(self.name(key), f"must be an object, not {value!r}")
        return ConfigReader(value, f"{self.name(key)}.")

    def refuse(self, inert: Mapping[str, tuple[Any, ...]]) -> None:
        """Raise for each key whose value is not absent and not among the values that change nothing."""
        for key, values in inert.items():
            value = self.raw(key)
            if value is not None and value not in values:
                raise ConfigError(self.name(key), f"{value!r} is not supported by this architecture")

    def _get(self, key: str, default: Any) -> Any:
        value = self._values.get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise ConfigError(self.name(key), "is missing")
        return default
