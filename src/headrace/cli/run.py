"""``headrace run``: raw completion of one prompt. The text appears as it comes; nothing else is on stdout."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from headrace.contract.errors import InvalidRequest

from .console import print_json, to_stderr, to_stdout
from .flags import EngineFlags, ReportFlags, SamplingFlags, flagged
from .loading import Loaded, loaded_llm
from .records import completion
from .streaming import Streamed, stream

Prompt = Annotated[str | None, typer.Argument(help="Text to continue; - reads standard input.", show_default=False)]
TokenIds = Annotated[str | None, typer.Option(help="Continue these ids instead, such as 12,7,430.")]


@flagged
def run(
    engine: EngineFlags,
    sampling: SamplingFlags,
    report: ReportFlags,
    prompt: Prompt = None,
    token_ids: TokenIds = None,
) -> None:
    """Continue a prompt, as it is (`headrace chat` applies the model's chat template)."""
    wanted = _wanted(prompt, token_ids)
    config, params = engine.resolve(), sampling.params()
    with loaded_llm(config, report.verbose) as loaded:
        prepared = loaded.llm.prepare(wanted, params)
        streamed = stream(loaded.llm, prepared, unseen if report.as_json else to_stdout)
        finish(loaded, streamed, report)


def finish(loaded: Loaded, streamed: Streamed, report: ReportFlags) -> None:
    """Reports one completion and ends the command."""
    if report.as_json:
        print_json(result(loaded, streamed))
    elif not streamed.output.outputs[0].text.endswith("\n"):
        to_stdout("\n")
    if report.verbose:
        to_stderr(summary(streamed) + drafts_text(loaded))
    if streamed.exit_code:
        raise typer.Exit(streamed.exit_code)


def result(loaded: Loaded, streamed: Streamed) -> dict[str, Any]:
    """The JSON object of one completion."""
    record = completion(streamed.output)
    stats = loaded.llm.engine.stats
    drafts = {"verified": stats.verified_drafts, "accepted": stats.accepted_drafts, "paused": not stats.speculating}
    speculation = {"drafts": drafts} if loaded.speculates else {}
    return {
        "model": loaded.llm.model_name,
        **record,
        **speculation,
        "timing": streamed.timing(loaded.load_s),
    }


def drafts_text(loaded: Loaded) -> str:
    """What speculation brought, as the end of a line; nothing where nobody asked for it."""
    if not loaded.speculates:
        return ""
    stats = loaded.llm.engine.stats
    paused = "" if stats.speculating else "; speculation is paused: it lost"
    if not stats.verified_drafts:
        return f"; no draft was worth verifying (--no-speculation-guard verifies all){paused}"
    return f"; {stats.accepted_drafts} of {stats.verified_drafts} drafts accepted{paused}"


def summary(streamed: Streamed) -> str:
    """Counts and times of one completion in a line."""
    output = streamed.output
    counts = f"{len(output.prompt_token_ids)} prompt tokens ({output.num_cached_tokens} cached)"
    rate = streamed.tokens_per_s
    speed = "" if rate is None else f", then {rate:.1f} tokens/s"
    first = "" if streamed.first_token_s is None else f"; first after {streamed.first_token_s:.2f} s{speed}"
    return f"{counts}, {len(output.outputs[0].token_ids)} generated{first}"


def read_stdin() -> str:
    """Standard input as text, without the line feed that ends it. Raises InvalidRequest when it is not UTF-8."""
    try:
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InvalidRequest("prompt", f"standard input is not UTF-8 (byte {error.start})") from error


def _wanted(prompt: str | None, token_ids: str | None) -> str | dict[str, Sequence[int]]:
    if token_ids is not None:
        if prompt is not None:
            raise InvalidRequest("prompt", "give a prompt or --token-ids, not both")
        return {"prompt_token_ids": _parse_ids(token_ids)}
    if prompt is None:
        raise InvalidRequest("prompt", 'is missing: headrace run "some text", or - to read standard input')
    return read_stdin() if prompt == "-" else prompt


def _parse_ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise InvalidRequest("token_ids", f"must be whole numbers separated by commas, got {text!r}") from None


def unseen(text: str) -> None:
    """With --json the text is part of the report."""
