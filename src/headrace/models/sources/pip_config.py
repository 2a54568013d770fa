"""Which package indexes this machine uses, read from where pip reads it: its files and its ``PIP_*``
variables.

Reading the files ourselves works in environments without pip and costs no process. Later sources win, as in
pip: system, user, environment's prefix, ``PIP_CONFIG_FILE``; in each, ``[global]`` before ``[download]``;
then variables. Only options that say where packages are and how to reach them are looked at.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace import env
from headrace.contract.errors import PullError

from .transport import Transport

DEFAULT_INDEX = "https://pypi.org/simple"
TRUE = ("1", "true", "yes", "on", "y", "t")


@dataclass(frozen=True, slots=True)
class PipConfig:
    """``find_links``: files, folders or pages with links. ``indexes``: roots of simple indexes, tried in
    order.
    """

    indexes: tuple[str, ...]
    find_links: tuple[str, ...]
    transport: Transport


def pip_config() -> PipConfig:
    """The settings in force now. Raises PullError naming a configuration file that cannot be read."""
    return from_options(_options())


def from_options(options: Mapping[str, str]) -> PipConfig:
    """Settings from options by name, as ``pip config list`` shows them without their section."""
    indexes = [options.get("index-url", DEFAULT_INDEX), *options.get("extra-index-url", "").split()]
    if options.get("no-index", "").lower() in TRUE:
        indexes = []
    return PipConfig(
        indexes=tuple(dict.fromkeys(url.rstrip("/") for url in indexes)),
        find_links=tuple(options.get("find-links", "").split()),
        transport=Transport(
            timeout_s=_seconds(options.get("timeout") or options.get("default-timeout")),
            ca_file=_path(options.get("cert")),
            client_cert=_path(options.get("client-cert")),
            proxy=options.get("proxy"),
            trusted_hosts=frozenset(options.get("trusted-host", "").split()),
        ),
    )


def _options() -> dict[str, str]:
    found: dict[str, dict[str, str]] = {"global": {}, "download": {}}
    variables = env.pip_options()
    for file in _files(variables.pop("config-file", None)):
        for section, options in _read(file).items():
            found.setdefault(section, {}).update(options)
    return found["global"] | found["download"] | variables


def _files(extra: str | None) -> Iterator[Path]:
    if extra == os.devnull:  # pip's way to say "no configuration files at all"
        return
    system, user = env.config_dirs()
    yield from (folder / "pip" / "pip.conf" for folder in reversed(system))
    yield Path("/etc/pip.conf")
    yield Path.home() / ".pip" / "pip.conf"
    yield user / "pip" / "pip.conf"
    yield Path.home() / "Library" / "Application Support" / "pip" / "pip.conf"
    yield Path(sys.prefix) / "pip.conf"
    if extra:
        yield Path(extra)


def _read(file: Path) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(file, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise PullError(str(file), f"pip's configuration cannot be read: {error}") from error
    return {
        section: {name.lower().replace("_", "-").removeprefix("--"): value for name, value in parser.items(section)}
        for section in parser.sections()
    }


def _seconds(value: str | None) -> float:
    try:
        return max(float(value or 30), 1.0)
    except ValueError:
        return 30.0


def _path(value: str | None) -> str | None:
    return str(Path(value).expanduser()) if value else None
