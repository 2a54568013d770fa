"""The application: which commands there are. Nothing here imports the engine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from headrace import __version__

from .bench import bench_app
from .chat import chat
from .doctor import doctor
from .embed import embed
from .generate import generate
from .golden import golden_app
from .guard import GuardedCommand
from .help import CommandGroup
from .interrupts import end_in_order_when_asked, leaving_at_once
from .kv import kv_app
from .kvstore import kvstore_app
from .models import models_app
from .run import run
from .serve import serve
from .tenants import tenants_app

GROUPS: dict[str, Callable[[], typer.Typer]] = {
    "models": models_app,
    "tenants": tenants_app,
    "bench": bench_app,
    "kv": kv_app,
    "golden": golden_app,
    "kvstore": kvstore_app,
}


def build_app() -> typer.Typer:
    """The ``headrace`` command with everything under it."""
    app = typer.Typer(
        name="headrace",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # its panels cut names and values off where the terminal is narrow
        cls=CommandGroup,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(top)
    for command in (run, chat, generate, serve, embed, doctor, *_explain()):
        app.command(cls=GuardedCommand)(command)
    for name, group in GROUPS.items():
        app.add_typer(group(), name=name, cls=CommandGroup)
    return app


def _explain() -> list[Callable[..., None]]:
    """``headrace explain``. It replays on the compiled core; where that cannot be loaded, ``doctor`` must still run."""
    try:
        from .explain import explain
    except ImportError:
        return []
    return [explain]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version.")]


def top(version: Version = False) -> None:
    """Run language models on this machine: one prompt, a conversation, or a batch of any size."""


def main() -> None:
    """Runs the command that the arguments name."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="replace")  # a terminal that lacks a character must not end the program
    with leaving_at_once():
        command = typer.main.get_command(build_app())
    end_in_order_when_asked()
    command(prog_name="headrace")
