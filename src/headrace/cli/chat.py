"""``headrace chat``: a conversation through the model's chat template, one message or many."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Annotated

import typer

from headrace.contract.errors import InvalidRequest
from headrace.contract.request import SamplingParams

from .console import print_json, to_stderr, to_stdout
from .flags import EngineFlags, ReportFlags, SamplingFlags, flagged
from .guard import one_line
from .loading import Loaded, loaded_llm
from .run import finish, read_stdin, result, summary, unseen
from .streaming import Streamed, stream

HELP = "/reset forgets the conversation, /exit (or the end of input) leaves, Ctrl-C stops an answer"

Message = Annotated[
    str | None,
    typer.Argument(help="One message to answer; - reads it from standard input. Without: a conversation."),
]
System = Annotated[str | None, typer.Option(help="System prompt, ahead of every conversation.")]


@dataclass(slots=True)
class Conversation:
    """What has been said. ``system`` survives ``reset``."""

    system: str | None
    messages: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]

    def say(self, role: str, text: str) -> None:
        self.messages.append({"role": role, "content": text})


@flagged
def chat(
    engine: EngineFlags,
    sampling: SamplingFlags,
    report: ReportFlags,
    message: Message = None,
    system: System = None,
) -> None:
    """Talk with a model that has a chat template."""
    message = read_stdin() if message == "-" else message
    config, params = engine.resolve(), sampling.params()
    with loaded_llm(config, report.verbose) as loaded:
        check_template(loaded)
        conversation = Conversation(system)
        if message is None:
            converse(loaded, conversation, params, report)
        else:
            conversation.say("user", message)
            finish(loaded, answer(loaded, conversation, params, report), report)


def check_template(loaded: Loaded) -> None:
    """Raises InvalidRequest for a model that cannot chat."""
    tokenizer = loaded.llm.tokenizer
    if tokenizer is None or tokenizer.chat_template is None:
        raise InvalidRequest(
            "model",
            f"{loaded.llm.model_name} has no chat template (a base model): use `headrace run` to continue plain text",
        )


def answer(loaded: Loaded, conversation: Conversation, params: SamplingParams, report: ReportFlags) -> Streamed:
    """Streams the next answer; what the model said, even if cut short, becomes part of the conversation."""
    llm = loaded.llm
    prepared = llm.prepare({"prompt_token_ids": llm.encode_chat(conversation.messages)}, params)
    streamed = stream(llm, prepared, unseen if report.as_json else to_stdout)
    conversation.say("assistant", streamed.output.outputs[0].text)
    return streamed


def converse(loaded: Loaded, conversation: Conversation, params: SamplingParams, report: ReportFlags) -> None:
    """Reads and answers until the input ends."""
    if sys.stdin.isatty():
        to_stderr(HELP)
    while (text := _read_line()) is not None:
        if text == "/exit":
            return
        if text == "/reset":
            conversation.reset()
        elif text.startswith("/"):
            to_stderr(f"error: {text.split()[0]} is no command; {HELP}")
        elif text:
            _turn(loaded, conversation, params, report, text)


def _turn(loaded: Loaded, conversation: Conversation, params: SamplingParams, report: ReportFlags, text: str) -> None:
    """One exchange. A message that cannot be served is taken back, and the conversation goes on."""
    conversation.say("user", text)
    try:
        streamed = answer(loaded, conversation, params, report)
    except InvalidRequest as error:
        conversation.messages.pop()
        to_stderr(f"error: {one_line(error)}; /reset starts over")
        return
    if report.as_json:
        print_json(result(loaded, streamed))
    else:
        to_stdout("\n")
    if report.verbose:
        to_stderr(summary(streamed))


def _read_line() -> str | None:
    """The next message without its line feed; None at the end of input."""
    try:
        if sys.stdin.isatty():
            import readline  # noqa: F401  # gives the prompt a history and editing keys

            return input("> ").strip()
        line = sys.stdin.readline()
    except EOFError:
        return None
    return line.strip() if line else None
