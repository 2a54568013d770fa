"""``/debug/profile``: off by default, for this machine or for admins, bounded, and the engine's process is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_models import write_model
from served import Script, running, scripted_llm
from starlette.requests import Request
from test_processes import serving
from test_tenants import tenant

from headrace.api.http.app import AppSettings
from headrace.api.http.profile_routes import _is_local
from headrace.api.tenants.registry import Registry
from headrace.api.tenants.tenancy import Tenancy, TenancyLimits
from headrace.api.tenants.usage import UsageBook

ROUTE = "/debug/profile"
ON = AppSettings(profile=True)


def stacks(text: str) -> dict[str, int]:
    return {stack: int(count) for stack, count in (line.rsplit(" ", 1) for line in text.splitlines())}


def test_profiles_only_where_asked_for(script: Script) -> None:
    with running(lambda: scripted_llm(script)) as server:
        assert server.http.post(f"{ROUTE}?seconds=0.1").status_code == 404
    with running(lambda: scripted_llm(script), settings=ON) as server:
        told = server.http.post(f"{ROUTE}?seconds=0.1")
        assert told.status_code == 200
        seen = stacks(told.text)
        assert seen
        assert all(stack.startswith("server;") and count >= 1 for stack, count in seen.items())
        assert server.http.post(f"{ROUTE}?seconds=1000").status_code == 400
        refused = server.http.post(f"{ROUTE}?seconds=soon")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "seconds")


def test_the_engine_s_process_is_in_it(tmp_path: Path) -> None:
    with serving(write_model(tmp_path, max_position_embeddings=4096), "--profile") as served:
        seen = stacks(served.http.post(f"{ROUTE}?seconds=0.3").text)
    assert {stack.split(";")[0] for stack in seen} == {"server", "engine"}
    assert any("child.py:_serve" in stack for stack in seen if stack.startswith("engine;"))


def test_with_tenants_it_is_for_admins(script: Script) -> None:
    registry = Registry([tenant("a"), tenant("boss", admin=True)])
    tenancy = Tenancy(registry, UsageBook(None), TenancyLimits())
    with running(lambda: scripted_llm(script), settings=ON, tenancy=tenancy) as server:
        asked = [
            server.http.post(f"{ROUTE}?seconds=0.05", headers={"x-api-key": key}) for key in ("", "key-a", "key-boss")
        ]
    assert [one.status_code for one in asked] == [401, 403, 200]


@pytest.mark.parametrize(
    ("client", "local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True), ("10.0.0.5", False),
     ("::ffff:10.0.0.5", False), ("fe80::1%eth0", False), ("name", False), (None, False)],
)  # fmt: skip
def test_without_tenants_it_is_for_this_machine(client: str | None, local: bool) -> None:
    scope: dict[str, Any] = {"type": "http", "headers": [], "client": None if client is None else (client, 1)}
    assert _is_local(Request(scope)) is local
