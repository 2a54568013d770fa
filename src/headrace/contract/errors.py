"""Errors that cross rooms. Each names the field or file at fault and says what to do next."""

from __future__ import annotations


class HeadraceError(Exception):
    """Root of every error this package raises on purpose."""


class InvalidRequest(HeadraceError, ValueError):
    """A request that cannot be served as asked. ``field`` names the offending input field."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class QueueFull(InvalidRequest):
    """A sound request that finds no place now; the same one may be taken later."""

    FIELD = "queue"  # travels with a delta as the field that the error is about

    def __init__(self, message: str) -> None:
        super().__init__(self.FIELD, message)


def refusal(field: str, text: str) -> InvalidRequest:
    """The error that was raised elsewhere, from the field and the text that a delta tells of it."""
    words = text.removeprefix(f"{field}: ")
    return QueueFull(words) if field == QueueFull.FIELD else InvalidRequest(field, words)


class ConfigError(HeadraceError, ValueError):
    """A configuration value that cannot work. ``field`` names the knob."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class ModelError(HeadraceError):
    """A checkpoint that cannot be used. ``where`` names the file (or source) and, if known, the key inside it."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(f"{where}: {message}")
        self.where = where


class PullError(HeadraceError):
    """A model could not be fetched. Partial bytes stay on disk, so a second pull resumes."""

    def __init__(self, source: str, message: str) -> None:
        super().__init__(f"{source}: {message}")
        self.source = source


class UnknownModel(PullError):
    """A name or place that can be no model: bad input, where a failed fetch is not."""


class RecordingError(HeadraceError, ValueError):
    """A flight recording that cannot be read or replayed. ``path`` and ``line`` (from 1; 0: all of it) say where."""

    def __init__(self, path: str, line: int, message: str) -> None:
        super().__init__(f"{path}:{line}: {message}" if line else f"{path}: {message}")
        self.path = path
        self.line = line


def reason(error: BaseException) -> str:
    """What an error says, for a log: our own ones name what they are about, others do not without their kind."""
    return str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"


class StoreError(HeadraceError):
    """A KV store that cannot be opened, reached or cleared. ``where`` names its folder or address."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(f"{where}: {message}")
        self.where = where


class WorkerError(HeadraceError):
    """A step failed in the worker. The sequences of that step are affected; the engine goes on."""


class HiddenWait(HeadraceError):
    """Something waited, or read a result still being written, inside a launch. A mistake in the engine's own code."""


class GroupBroken(HeadraceError):
    """A rank of a group is gone, silent or out of step. The group cannot go on; its engines end their requests."""


class EngineBusy(HeadraceError):
    """A synchronous front is asked for a second thing while it does the first."""


class EngineDead(HeadraceError):
    """The engine is gone (closed, crashed or not answering) and takes no more requests."""


class StartRefused(EngineDead):
    """An engine in another process refused to start with what it was given: bad input, where a crash is not."""


BAD_INPUT = (InvalidRequest, ConfigError, ModelError, RecordingError, UnknownModel, StartRefused)
"""What whoever asked can mend by asking otherwise."""
