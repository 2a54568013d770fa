"""``headrace serve --role``: an engine that computes prompts or decodes, and the front that serves over one of each."""

from __future__ import annotations

import dataclasses
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.config import EngineConfig
from headrace.contract.errors import ConfigError, EngineDead

from .console import print_json, to_stderr
from .flags import ReportFlags
from .interrupts import signals_to_heed

if TYPE_CHECKING:
    from headrace.api.async_llm import AsyncLLM

ROLE_OF = {"prefill": "prompt", "decode": "completion"}


@dataclasses.dataclass(frozen=True)
class RoleFlags:
    """Engines started one by one. A role's engine waits for a front; a front names one engine of each role."""

    role: Annotated[
        str | None, typer.Option(help="Be one engine, prefill or decode, for a front elsewhere; serves no HTTP.")
    ] = None
    listen: Annotated[
        str | None, typer.Option(help="With --role: where the front finds it, such as tcp://127.0.0.1:7430.")
    ] = None
    hand_off: Annotated[
        str | None, typer.Option(help="With --role: where sequences are handed over; decode listens, prefill connects.")
    ] = None
    prefill: Annotated[str | None, typer.Option(help="As a front: where the prefill engine listens.")] = None
    decode: Annotated[str | None, typer.Option(help="As a front: where the decode engine listens.")] = None
    role_secret: Annotated[
        Path | None, typer.Option(help="File with the secret these three share; needed beyond this machine.")
    ] = None

    def check(self) -> None:
        """Raises ConfigError naming the option at fault, before any work."""
        _require(self.role is None or self.role in ROLE_OF, "role", "must be prefill or decode")
        for name, value in (("listen", self.listen), ("hand_off", self.hand_off)):
            flag = f"--{name.replace('_', '-')}"
            _require(self.role is None or value is not None, name, f"{flag} is missing: --role {self.role} needs it")
            _require(self.role is not None or value is None, name, f"{flag} belongs to --role, which is missing")
        for name, value, other in (("decode", self.decode, self.prefill), ("prefill", self.prefill, self.decode)):
            _require(value is not None or other is None, name, f"--{name} is missing: a front needs one engine of each")
        _require(self.role is None or self.prefill is None, "prefill", "is a front's; one with a --role has none")
        used = self.role is not None or self.prefill is not None
        _require(self.role_secret is None or used, "role_secret", "belongs to --role, or --prefill and --decode")

    def secret(self) -> bytes | None:
        from headrace.kv.secret import read_secret

        return None if self.role_secret is None else read_secret(self.role_secret)


def _require(condition: bool, field: str, reason: str) -> None:
    if not condition:
        raise ConfigError(field, reason)


def serve_role(config: EngineConfig, flags: RoleFlags, report: ReportFlags) -> None:
    """Runs one engine until interrupted. Raises EngineDead when it dies by itself."""
    from headrace.api.role_service import open_role

    require_no_discipline(config)
    _require(not config.runtime.encoder_process, "encoder_process", "is the front's: give it there, not to a --role")
    role, listen, hand_off = flags.role or "", flags.listen or "", flags.hand_off or ""  # ``check`` has seen to that
    standing = open_role(config, ROLE_OF[role], listen, hand_off, flags.secret())
    for number in signals_to_heed():
        signal.signal(number, lambda *_: standing.stop())
    if report.as_json:
        print_json({"role": role, "address": standing.address, "hand_off": flags.hand_off})
    else:
        to_stderr(f"{role} engine on {standing.address}, handing over at {flags.hand_off}")
    why = standing.run()
    if why is not None:
        raise EngineDead(why)


def require_no_discipline(config: EngineConfig) -> None:
    """An engine of one role knows no other. Raises ConfigError for what would be passed over."""
    reason = "an engine with a --role, and a front over such engines, have no discipline: leave it out"
    _require(config.scheduler.discipline in ("mixed", "split"), "discipline", reason)
    reason = "one --role is one engine: leave it out"
    _require(config.group.data_parallel_size == 1, "data_parallel_size", reason)


def starter(config: EngineConfig, flags: RoleFlags, give_up: threading.Event) -> Callable[[], AsyncLLM]:
    """What a server starts, and starts again: an engine of its own, or a connection to engines elsewhere. ``give_up``:
    set when nobody waits for it any more."""
    from headrace.api.async_llm import AsyncLLM

    if flags.prefill is None or flags.decode is None:
        return lambda: AsyncLLM(own_process=True, config=config, give_up=give_up)
    from headrace.api.role_service import connect_roles

    require_no_discipline(config)
    addresses, secret = (flags.prefill, flags.decode), flags.secret()

    def connect() -> AsyncLLM:
        to_stderr(f"waiting for the engines at {addresses[0]} (prefill) and {addresses[1]} (decode)")
        return AsyncLLM.over(*connect_roles(config, addresses, secret, give_up))

    return connect
