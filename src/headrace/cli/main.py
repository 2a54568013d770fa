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
from .interrupts import end_in_order_when_asked, leaving_at_once
from .kv import kv_app
from .kvstore import kvstore_app
from .models import models_app
from .run import run
from .serve import serve
from .tenants import tenants_app


def build_app() -> typer.Typer:
    """The ``headrace`` command with everything under it."""
    app = typer.Typer(
        name="headrace",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(top)
    for command in (run, chat, generate, serve, embed, doctor, *_explain()):
        app.command(cls=GuardedCommand)(command)
    app.add_typer(models_app(), name="models")
    app.add_typer(tenants_app(), name="tenants")
    app.add_typer(bench_app(), name="bench")
    app.add_typer(kv_app(), name="kv")
    app.add_typer(golden_app(), name="golden")
    app.add_typer(kvstore_app(), name="kvstore")
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
        app = build_app()
    end_in_order_when_asked()
    app(prog_name="headrace")
