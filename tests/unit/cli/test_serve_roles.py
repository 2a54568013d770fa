"""What ``serve`` refuses about roles, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import pytest

from headrace.api.role_service import connect_roles, open_role
from headrace.cli.flags import ReportFlags
from headrace.cli.serve_roles import RoleFlags, serve_role, starter
from headrace.config import resolve
from headrace.contract.errors import ConfigError

HERE = "tcp://127.0.0.1:7430"


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        ({"role": "both", "listen": HERE, "hand_off": HERE}, "role"),
        ({"role": "decode", "hand_off": HERE}, "listen"),
        ({"role": "decode", "listen": HERE}, "hand_off"),
        ({"listen": HERE}, "listen"),
        ({"prefill": HERE}, "decode"),
        ({"decode": HERE}, "prefill"),
        ({"role": "prefill", "listen": HERE, "hand_off": HERE, "prefill": HERE, "decode": HERE}, "prefill"),
        ({"role_secret": Path("secret")}, "role_secret"),
    ],
)
def test_options_that_do_not_go_together(flags: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        RoleFlags(**flags).check()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"role": "decode", "hand_off": HERE}, "--listen is missing: --role decode needs it"),
        ({"role": "decode", "listen": HERE}, "--hand-off is missing"),
        ({"hand_off": HERE}, "--hand-off belongs to --role, which is missing"),
        ({"prefill": HERE}, "--decode is missing"),
        ({"decode": HERE}, "--prefill is missing"),
    ],
)
def test_what_is_missing_is_told(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RoleFlags(**flags).check()


@pytest.mark.parametrize(("name", "value"), [("discipline", "voted"), ("data_parallel_size", 2)])
def test_what_a_role_or_its_front_would_pass_over_is_refused(name: str, value: object) -> None:
    config = resolve({"model": "/nowhere", name: value})
    with pytest.raises(ConfigError, match=f"^{name}: .*leave it out"):
        serve_role(config, RoleFlags(role="decode", listen=HERE, hand_off=HERE), ReportFlags())
    with pytest.raises(ConfigError, match=f"^{name}: .*leave it out"):
        starter(config, RoleFlags(prefill=HERE, decode=HERE), Event())
    starter(config, RoleFlags(), Event())


def test_what_goes_together_passes() -> None:
    RoleFlags().check()
    RoleFlags(prefill=HERE, decode=HERE).check()
    RoleFlags(role="decode", listen=HERE, hand_off=HERE).check()


@pytest.mark.parametrize(
    ("address", "field"),
    [("127.0.0.1:7430", "listen"), ("tcp://0.0.0.0:7430", "role_secret"), ("tcp://*:1", "role_secret")],
)
def test_an_address_open_to_others_needs_a_secret(address: str, field: str) -> None:
    config = resolve({"model": "/nowhere"})
    with pytest.raises(ConfigError, match=f"^{field}: "):
        open_role(config, "prompt", address, HERE, None)
    with pytest.raises(ConfigError, match=f"^{field.replace('listen', 'decode')}: "):
        connect_roles(config, (HERE, address), None)
