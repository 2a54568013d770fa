"""What a user sees when something goes wrong: one line on stderr that says what to do, and an exit code.

0 done · 1 failed · 2 bad input · 3 done, but some lines of a batch failed · 130 interrupted.
A traceback appears only with ``--traceback`` or ``-v``.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import typer
from typer.core import TyperCommand

from headrace.contract.errors import BAD_INPUT, HeadraceError

from .console import printable, to_stderr
from .interrupts import import_engine

SOME_FAILED = 3
INTERRUPTED = 130
BROKEN_PIPE = 141


class GuardedCommand(TyperCommand):
    """A command whose errors end as one line. Use it for every command of the application."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return self.run(ctx)
        except BrokenPipeError:
            _forget_stdout()
            raise typer.Exit(BROKEN_PIPE) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except (HeadraceError, OSError, MemoryError, ImportError) as error:
            raise typer.Exit(report(error, _wants_traceback(ctx))) from None
        except Exception as error:
            if type(error).__module__.startswith(("typer", "click")):  # usage errors and exits are the library's
                raise
            raise typer.Exit(report(error, _wants_traceback(ctx))) from None

    def run(self, ctx: Any) -> Any:
        """The command itself, unguarded."""
        return super().invoke(ctx)


class EngineCommand(GuardedCommand):
    """One that needs the engine whatever its arguments. It is imported first: who interrupts that is obeyed at once."""

    def run(self, ctx: Any) -> Any:
        import_engine()
        return super().run(ctx)


def report(error: BaseException, with_traceback: bool) -> int:
    """Tells the user; returns the exit code."""
    if with_traceback:
        traceback.print_exception(error)
    to_stderr(f"error: {one_line(error)}")
    return 2 if isinstance(error, BAD_INPUT) else 1


def one_line(error: BaseException) -> str:
    """What happened, fit for a terminal."""
    text = printable(" ".join(str(error).split()))
    if isinstance(error, HeadraceError):
        return text
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else text
    if isinstance(error, MemoryError):
        return f"out of memory{': ' + text if text else ''}; a smaller --kv-memory or model may fit"
    if isinstance(error, ImportError):
        return f"{text}; is the package built and installed? `headrace doctor` tells"
    return f"{type(error).__name__}: {text}. This is a defect; --traceback shows where"


def _wants_traceback(ctx: Any) -> bool:
    flags = ("verbose", "traceback")
    return any(ctx.params.get(flag) for flag in flags)


def _forget_stdout() -> None:
    """The reader is gone: keeps the interpreter from complaining about it once more at exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
