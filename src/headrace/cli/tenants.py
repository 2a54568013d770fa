"""``headrace tenants``: who may use a server, in the file that ``headrace serve --tenants`` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.api.tenants.registry import Registry, Tenant, changing, hash_key, new_key
from headrace.contract.errors import ConfigError

from .console import print_json, print_table, to_stderr, to_stdout
from .flags import ReportFlags, flagged
from .guard import GuardedCommand

Name = Annotated[str, typer.Argument(help="Letters, digits, dot and dash.")]
File = Annotated[Path, typer.Option("--file", "-f", help="The tenants' file.")]
Requests = Annotated[int | None, typer.Option(min=1, help="Requests a minute; no limit when left out.")]
Tokens = Annotated[int | None, typer.Option(min=1, help="Tokens a minute, prompt and answer; no limit when left out.")]
Weight = Annotated[float, typer.Option(help="Share of the engine against other tenants.")]
Admin = Annotated[bool, typer.Option("--admin", help="May see /admin/tenants.")]
Shared = Annotated[bool, typer.Option("--share-cache", help="Share cached prompts with others who do.")]
NewRequests = Annotated[int | None, typer.Option(min=0, help="Requests a minute; 0: no limit.")]
NewTokens = Annotated[int | None, typer.Option(min=0, help="Tokens a minute, prompt and answer; 0: no limit.")]
NewWeight = Annotated[float | None, typer.Option(help="Share of the engine against other tenants.")]
NewAdmin = Annotated[bool | None, typer.Option("--admin/--no-admin", help="Whether it may see /admin/tenants.")]
NewShared = Annotated[
    bool | None, typer.Option("--share-cache/--no-share-cache", help="Whether cached prompts are shared with others.")
]
FILE = Path("tenants.json")
RESTART = "A server that runs goes on with what it read when it started: restart it"


def tenants_app() -> typer.Typer:
    """The group of commands about tenants."""
    app = typer.Typer(
        no_args_is_help=True, help="The tenants of a server: add, list, change limits, remove, give a new key."
    )
    app.callback()(_group)
    app.command("add", cls=GuardedCommand)(add)
    app.command("list", cls=GuardedCommand)(list_command)
    app.command("remove", cls=GuardedCommand)(remove)
    app.command("set", cls=GuardedCommand)(set_command)
    app.command("rekey", cls=GuardedCommand)(rekey)
    return app


def _group() -> None:
    """The tenants of a server. A running server reads their file when it starts."""


@flagged
def add(
    report: ReportFlags,
    name: Name,
    file: File = FILE,
    requests_per_min: Requests = None,
    tokens_per_min: Tokens = None,
    weight: Weight = 1.0,
    admin: Admin = False,
    share_cache: Shared = False,
) -> None:
    """Make a key for a tenant. It is shown this once; the file keeps its hash. A running server must be restarted."""
    key = new_key()
    tenant = Tenant(
        name=name,
        key_sha256=hash_key(key),
        requests_per_min=requests_per_min,
        tokens_per_min=tokens_per_min,
        weight=weight,
        admin=admin,
        share_cache=share_cache,
    )
    with changing(file):
        known = Registry.load(file) if file.exists() else Registry([])
        known.with_new(tenant).save(file)
    _tell_key(report, name, key, file)


@flagged
def remove(report: ReportFlags, name: Name, file: File = FILE) -> None:
    """Take a tenant out of the file; its usage is kept. A running server must be restarted."""
    with changing(file):
        Registry.load(file).without(name).save(file)
    if report.as_json:
        print_json({"name": name, "file": str(file)})
        return
    to_stderr(f"{name} is no longer in {file}. {RESTART}")


@flagged
def rekey(report: ReportFlags, name: Name, file: File = FILE) -> None:
    """Give a tenant a new key; the old one ends when the server is restarted."""
    key = new_key()
    with changing(file):
        Registry.load(file).with_key(name, key).save(file)
    _tell_key(report, name, key, file, "A server that runs takes the old one until you restart it")


@flagged
def set_command(
    report: ReportFlags,
    name: Name,
    file: File = FILE,
    requests_per_min: NewRequests = None,
    tokens_per_min: NewTokens = None,
    weight: NewWeight = None,
    admin: NewAdmin = None,
    share_cache: NewShared = None,
) -> None:
    """Change what a tenant may do; its key stays, and so does what is left out. A running server must be restarted."""
    limits = {"requests_per_min": requests_per_min, "tokens_per_min": tokens_per_min}
    fields: dict[str, Any] = {field: limit or None for field, limit in limits.items() if limit is not None}
    others = {"weight": weight, "admin": admin, "share_cache": share_cache}
    fields |= {field: value for field, value in others.items() if value is not None}
    if not fields:
        raise ConfigError("tenants", "nothing to set: give a limit, --weight, --admin or --share-cache")
    with changing(file):
        Registry.load(file).changed(name, **fields).save(file)
    if report.as_json:
        print_json({"name": name, "file": str(file), **fields})
        return
    to_stderr(f"{name} is changed in {file}. {RESTART}")


def _tell_key(report: ReportFlags, name: str, key: str, file: Path, then: str = RESTART) -> None:
    if report.as_json:
        print_json({"name": name, "key": key, "file": str(file)})
        return
    to_stdout(f"{key}\n")
    to_stderr(f"{name} is in {file}; its key is above and cannot be shown again. {then}")


@flagged
def list_command(report: ReportFlags, file: File = FILE) -> None:
    """Show the tenants of a file."""
    tenants = [_facts(tenant) for tenant in Registry.load(file).tenants]
    if report.as_json:
        print_json(tenants)
        return
    headings = ("name", "requests/min", "tokens/min", "weight", "admin", "shares cache")
    rows = [["" if value is None else value for value in tenant.values()] for tenant in tenants]
    print_table(headings, rows)


def _facts(tenant: Tenant) -> dict[str, Any]:
    names = ("name", "requests_per_min", "tokens_per_min", "weight", "admin", "share_cache")
    return {name: getattr(tenant, name) for name in names}
