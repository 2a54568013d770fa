"""Exact comparison of answers with a baseline: what differs, where it begins, and whether the question was the same."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from .baseline import Baseline, Entry
from .suite import Share


class Difference(msgspec.Struct, frozen=True):
    """``what``: missing, unexpected, inputs, ids, logprobs, nll, perplexity, bits or weights. Words for people."""

    sample: str
    what: str
    baseline: str
    found: str


def compare(baseline: Baseline, found: Mapping[str, Entry], weights: str, share: Share) -> list[Difference]:
    """Looks at the owned samples only. Other weights are one difference and end the comparison."""
    if baseline.weights != weights:
        return [Difference("*", "weights", baseline.weights, weights)]
    wanted = {name: e for name, e in baseline.samples.items() if share.owns(e.index, e.group)}
    out = [Difference(name, "missing", "is there", "was not measured") for name in wanted.keys() - found.keys()]
    out += [Difference(name, "unexpected", "has no such sample", "is new") for name in found.keys() - wanted.keys()]
    for name in wanted.keys() & found.keys():
        out += _entries(name, wanted[name], found[name])
    order = {name: entry.index for name, entry in {**found, **baseline.samples}.items()}
    return sorted(out, key=lambda difference: order[difference.sample])


def _entries(name: str, old: Entry, new: Entry) -> list[Difference]:
    if (old.inputs, old.index, old.group) != (new.inputs, new.index, new.group):
        asked = [f"{entry.inputs} at {entry.index} of {entry.group}" for entry in (old, new)]
        return [Difference(name, "inputs", *asked)]
    if old.ids != new.ids:
        at = _first(old.ids, new.ids)
        return [Difference(name, "ids", f"at token {at}: {old.ids[at:][:6]}", f"{new.ids[at:][:6]}")]
    out = []
    if old.logprobs != new.logprobs:
        at = _first(old.logprobs, new.logprobs)
        out.append(
            Difference(name, "logprobs", f"at token {at}: {_number(old.logprobs, at)}", _number(new.logprobs, at))
        )
    if old.nll != new.nll:
        perplexities = f"{old.nll} (perplexity {old.perplexity})", f"{new.nll} (perplexity {new.perplexity})"
        out.append(Difference(name, "nll", *perplexities))
    elif not _alike(old.perplexity, new.perplexity):
        out.append(Difference(name, "perplexity", f"{old.perplexity}", f"{new.perplexity}"))
    if not out and old.bits != new.bits:  # differences that cancel out in the sum
        out.append(Difference(name, "bits", old.bits, new.bits))
    return out


def _alike(old: float | None, new: float | None) -> bool:
    """The number for the reader, rounded, by an exponential of another library perhaps: the bits are the nll's."""
    return old == new if old is None or new is None else math.isclose(old, new, rel_tol=1e-6)


def _first(old: list[int] | list[str], new: list[int] | list[str]) -> int:
    return next((i for i, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)))


def _number(values: list[str], at: int) -> str:
    return f"{values[at]} ({float.fromhex(values[at]):.9g})" if at < len(values) else "nothing"
