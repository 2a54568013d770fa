"""The op-case table: one list that drives correctness tests, timings and the support matrix.

A case names an op and builds its arguments from a seed. Nothing here asserts: tests compare, ``time_cases``
measures, ``support_matrix`` reports (both in ``case_reports``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from . import case_inputs as inputs
from . import record_inputs
from .kv_rows import FORMATS, decode, has_codes
from .ops import LogitRules, Logprobs, Ops, SampleParams
from .quant import KINDS


@dataclass(frozen=True, slots=True)
class Case:
    """``build(seed)`` gives the op's arguments, weights still unpacked.

    Results agree with the reference within ``atol + rtol * |reference|`` (ids exactly). ``row_args`` are the
    arguments with one entry per row: the op must give each row the same bits alone as among others. ``timed``
    cases have sizes worth measuring.
    """

    name: str
    op: str
    build: Callable[[int], tuple[Any, ...]]
    atol: float = 1e-5
    rtol: float = 1e-5
    row_args: tuple[int, ...] = ()
    timed: bool = False


# Which argument of an op is a weight.
WEIGHT_AT = {"linear": 1, "embedding": 1, "norm_linear": 4, "gated_linear": 2, "norm_argmax": 3}


def prepare(ops: Ops, case: Case, seed: int = 0) -> tuple[Any, ...]:
    """The case's arguments as ``ops`` wants them: weights packed."""
    args = case.build(seed)
    at = WEIGHT_AT.get(case.op)
    return args if at is None else (*args[:at], ops.pack_weight(args[at]), *args[at + 1 :])


def call(ops: Ops, op: str, args: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """Run the op and return its results as a flat tuple; ops that work in place return what they changed."""
    if op == "pack_weight":
        return (ops.linear(torch.eye(args[0].shape[1]), ops.pack_weight(args[0]), None),)
    result = getattr(ops, op)(*args)
    if op == "write_kv":
        return args[2], args[3]
    if op == "qkv_to_cache":
        return result, *(decode(cache) if has_codes(cache.dtype) else cache for cache in args[7:9])
    if op == "apply_rules":
        return (args[0],)
    if isinstance(result, Logprobs):
        return result.chosen, result.rank, result.top_ids, result.top_values
    return result if isinstance(result, tuple) else (result,)


def take_rows(value: Any, rows: list[int]) -> Any:
    """A row argument restricted to some rows."""
    if isinstance(value, SampleParams):
        return SampleParams(*(getattr(value, name)[rows] for name in SampleParams.__slots__))
    if isinstance(value, LogitRules):
        return _take_rules(value, rows)
    return value[rows].clone()


def _take_rules(rules: LogitRules, rows: list[int]) -> LogitRules:
    taken = {name: getattr(rules, name)[rows] for name in ("repetition", "presence", "frequency")}
    for kind in ("bias", "allow", "prompt", "output", "ban"):
        offsets = getattr(rules, f"{kind}_offsets")
        runs = [range(int(offsets[r]), int(offsets[r + 1])) for r in rows]
        at = torch.tensor([i for run in runs for i in run], dtype=torch.int64)
        taken[f"{kind}_offsets"] = torch.tensor([0, *map(len, runs)]).cumsum(0).to(torch.int32)
        taken[f"{kind}_ids"] = getattr(rules, f"{kind}_ids")[at]
        if kind == "bias":
            taken["bias_values"] = rules.bias_values[at]
    return LogitRules(**taken)


def _linear(t: int, k: int, n: int, bias: bool = False, timed: bool = False) -> Case:
    build = partial(inputs.linear, t=t, k=k, n=n, bias=bias)
    name = f"linear-{t}x{k}x{n}{'-bias' if bias else ''}"
    return Case(name, "linear", build, atol=3e-6 * k**0.5 + 1e-5, row_args=(0,), timed=timed)


def _quantised(t: int, k: int, n: int, *kinds: str, bias: bool = False, timed: bool = False) -> Case:
    """Blocks against exact arithmetic. A rounded activation is off by up to 1/254 of its group's largest, here by
    about 0.003; times values of about 1, over k terms that add like a random walk, six standard deviations."""
    build = partial(inputs.quantised_linear, kinds=kinds, t=t, k=k, n=n, bias=bias)
    name = f"linear-{'+'.join(kinds)}-{t}x{k}x{n}{'-bias' if bias else ''}"
    return Case(name, "linear", build, atol=0.018 * k**0.5, row_args=(0,), timed=timed)


def _norm_linear(
    t: int, k: int, n: int, *kinds: str, residual: bool = True, bias: bool = False, timed: bool = False
) -> Case:
    """Normed rows have values of about 1: their rounding costs twice that of ``_quantised``."""
    build = partial(inputs.norm_linear, t=t, k=k, n=n, kinds=kinds, residual=residual, bias=bias)
    name = f"norm_linear-{'+'.join(kinds)}-{t}x{k}x{n}{'-add' if residual else ''}{'-bias' if bias else ''}"
    atol = 3e-6 * k**0.5 + 1e-5 if kinds == ("F32",) else 0.036 * k**0.5
    return Case(name, "norm_linear", build, atol, row_args=(0, 1) if residual else (0,), timed=timed)


def _gated_linear(t: int, k: int, n: int, *kinds: str, gelu: bool = False, timed: bool = False) -> Case:
    build = partial(inputs.gated_linear, t=t, k=k, n=n, kinds=kinds, gelu=gelu)
    name = f"gated_linear-{'+'.join(kinds)}-{t}x{k}x{n}{'-gelu' if gelu else ''}"
    atol = 3e-6 * k**0.5 + 1e-5 if kinds == ("F32",) else 0.036 * k**0.5
    return Case(name, "gated_linear", build, atol, row_args=(0,), timed=timed)


def _rows(op: str, name: str, build: Callable[[int], tuple[Any, ...]], *row_args: int, timed: bool = False) -> Case:
    return Case(f"{op}-{name}", op, build, row_args=row_args, timed=timed)


def _attention(name: str, slices: list[tuple[int, int]], timed: bool = False, **options: Any) -> Case:
    """Over codes, queries and weights are rounded too, to one part in 5,792 of their largest for heads of 64: scores
    that add 64 such errors like a random walk are off by about 2e-4, ten times that at worst."""
    build = partial(inputs.attention, slices=slices, **options)
    atol = {"int16": 2e-3, "int8": 4e-4}.get(options.get("kv", ""), 2e-5)
    return Case(f"attention-{name}", "paged_attention", build, atol=atol, timed=timed)


def _sample(name: str, temperature: float, top_k: int, top_p: float, min_p: float, **options: Any) -> Case:
    shape = {"rows": 24, "vocab": 1000} | options

    def build(seed: int) -> tuple[Any, ...]:
        return inputs.sample(seed, inputs.logits(seed, **shape), temperature, top_k, top_p, min_p)

    return Case(f"sample-{name}", "sample", build, row_args=(0, 1), timed=shape["vocab"] > 10000)


def _broken_sample(temperature: float) -> Case:
    def build(seed: int) -> tuple[Any, ...]:
        return inputs.sample(seed, inputs.broken(inputs.logits(seed, 6, 50)), temperature, 5, 0.9, 0.0)

    return Case(f"sample-broken-rows-{temperature}", "sample", build, row_args=(0, 1))


def _logprobs(name: str, n: int, rows: int, vocab: int, ties: bool = False, broken: bool = False) -> Case:
    def build(seed: int) -> tuple[Any, ...]:
        x = inputs.logits(seed, rows, vocab, ties=ties)
        return inputs.logprobs(seed, inputs.broken(x) if broken else x, n)

    return Case(f"logprobs-{name}", "gather_logprobs", build, row_args=(0, 1), timed=vocab > 10000)


NARROW = ("bfloat16", "int16", "int8")
HEADS = (((9, 3), 20), ((4, 1), 128), ((2, 2), 8), ((40, 2), 64))
RAGGED = [(1, 1), (5, 5), (1, 33), (7, 40), (3, 600), (1, 1100), (0, 4), (20, 530)]

CASES: tuple[Case, ...] = (
    Case("pack_weight-odd", "pack_weight", lambda seed: (inputs.linear(seed, 1, 37, 53)[1],)),
    *(_linear(t, k, n) for t in (0, 1, 2, 5, 13, 40) for k, n in ((64, 64), (37, 53), (1, 1), (130, 17))),
    _linear(97, 50, 130, bias=True),
    _linear(1, 7, 5, bias=True),
    *(_linear(t, 576, 1536, timed=True) for t in (1, 4, 16, 64, 512)),
    _linear(1, 576, 49152, timed=True),
    *(_quantised(t, 256, 37, kind) for kind in KINDS for t in (1, 13)),
    *(_quantised(t, 96, 70, kind, bias=True) for kind in ("Q4_0", "Q4_1", "Q5_1", "Q8_0") for t in (0, 2, 40)),
    _quantised(1, 32, 1, "Q4_1"),
    _quantised(100, 64, 16, "Q8_0"),
    _quantised(9, 256, 21, "Q5_0", "F32", "Q4_K", "Q6_K", bias=True),
    *(_quantised(t, 576, 1536, kind, timed=True) for kind in ("Q4_1", "Q8_0") for t in (1, 4, 8, 16, 64, 512)),
    _quantised(1, 576, 49152, "Q8_0", timed=True),
    *(_norm_linear(t, 96, 70, kind) for kind in ("F32", "Q4_1", "Q8_0") for t in (0, 1, 13, 100)),
    _norm_linear(7, 256, 37, "Q8_0", residual=False, bias=True),
    _norm_linear(30, 256, 21, "Q5_0", "F32", "Q6_K", bias=True),
    *(_norm_linear(t, 576, 3072, kind, timed=True) for kind in ("Q4_1", "Q8_0") for t in (1, 16, 512)),
    *(_gated_linear(t, 96, 70, kind) for kind in ("F32", "Q4_1", "Q8_0") for t in (0, 1, 13, 100)),
    _gated_linear(30, 256, 21, "Q5_0", "F32", "Q6_K", gelu=True),
    *(_gated_linear(t, 1536, 576, kind, timed=True) for kind in ("Q4_1", "Q8_0") for t in (1, 16, 512)),
    *(
        _rows("norm_argmax", name, partial(inputs.norm_argmax, r=r, k=k, n=n, ties=ties, broken=broken), 0)
        for name, r, k, n, ties, broken in (
            ("plain", 5, 40, 1000, False, False),
            ("ties", 100, 33, 700, True, False),
            ("broken", 4, 16, 50, False, True),
            ("one", 2, 8, 1, False, False),
            ("none", 0, 8, 20, False, False),
        )
    ),
    *(
        _rows("embedding", kind, partial(inputs.quantised_embedding, kind=kind, t=9, vocab=37, k=512), 0)
        for kind in KINDS
    ),
    _rows("embedding", "odd", partial(inputs.embedding, t=9, vocab=77, k=37), 0),
    _rows("embedding", "none", partial(inputs.embedding, t=0, vocab=5, k=3), 0),
    _rows("embedding", "32x576", partial(inputs.embedding, t=32, vocab=4096, k=576), 0, timed=True),
    *(_rows("rms_norm", f"{t}x{d}", partial(inputs.norm, t=t, d=d), 0) for t, d in ((0, 8), (1, 1), (70, 300))),
    _rows("rms_norm", "64x576", partial(inputs.norm, t=64, d=576), 0, timed=True),
    _rows("add_rms_norm", "5x37", partial(inputs.norm, t=5, d=37, residual=True), 0, 1),
    _rows("add_rms_norm", "64x576", partial(inputs.norm, t=64, d=576, residual=True), 0, 1, timed=True),
    *(
        _rows(
            "rope",
            f"{d}-{rot}-{pairs}",
            partial(inputs.rope, t=t, heads=(9, 3), d=d, rot=rot, interleaved=pairs),
            0,
            1,
            2,
        )
        for t, d, rot in ((6, 64, 64), (5, 10, 6), (0, 8, 8), (60, 256, 128))
        for pairs in (False, True)
    ),
    *(
        _rows(op, f"{t}x{f}", partial(inputs.gate, t=t, f=f, spread=spread), 0, timed=f > 1000)
        for op in ("silu_mul", "gelu_tanh_mul")
        for t, f, spread in ((0, 4, 1.0), (3, 37, 3.0), (4, 16, 60.0), (64, 1536, 3.0))
    ),
    _rows("write_kv", "blocks-of-3", partial(inputs.write_kv, t=11, heads=3, block_size=3, d=7)),
    _rows("write_kv", "blocks-of-32", partial(inputs.write_kv, t=64, heads=3, block_size=32, d=64), timed=True),
    *(
        _rows("write_kv", kv, partial(inputs.write_kv, t=20, heads=3, block_size=16, d=20, dtype=FORMATS[kv]))
        for kv in NARROW
    ),
    _rows("write_kv", "none", partial(inputs.write_kv, t=0, heads=1, block_size=16, d=8)),
    *(
        _rows("qkv_to_cache", name, partial(inputs.heads, t=t, heads=heads, d=d, rot=rot, norms=norms), timed=t > 40)
        for name, t, heads, d, rot, norms in (
            ("plain", 11, (9, 3), 64, 64, False),
            ("norms", 7, (4, 1), 20, 12, True),
            ("none", 0, (2, 2), 8, 8, True),
            ("wide", 64, (9, 3), 64, 64, True),
        )
    ),
    *(
        Case(
            f"qkv_to_cache-{kv}",
            "qkv_to_cache",
            partial(inputs.heads, t=13, heads=(9, 3), d=64, rot=64, norms=True, dtype=FORMATS[kv]),
            atol=atol,  # of codes: one of them, for values up to 12
        )
        for kv, atol in (("bfloat16", 1e-5), ("int16", 12 / 5792), ("int8", 12 / 127))
    ),
    *(_rows("gather_rows", f"{t}-{r}", partial(inputs.gather, t=t, r=r, d=37), 1) for t, r in ((9, 5), (3, 0), (1, 4))),
    *(
        _rows(
            "axpy",
            f"{t}x{d}{'-add' if add else ''}",
            partial(inputs.axpy, t=t, d=d, add=add),
            *((0, 2) if add else (0,)),
        )
        for t, d in ((0, 5), (7, 37), (64, 576))
        for add in (False, True)
    ),
    *(_attention(f"ragged-block-{b}", RAGGED, block_size=b) for b in (3, 16, 32, 48)),
    *(_attention(f"window-{w}", RAGGED, window=w, block_size=16) for w in (1, 5, 32, 100, 700)),
    *(_attention(f"{kv}-block-{b}", RAGGED, block_size=b, kv=kv) for kv in NARROW for b in (3, 32)),
    *(_attention(f"{kv}-window", RAGGED, window=100, block_size=16, kv=kv) for kv in NARROW),
    *(_attention(f"{kv}-heads-{h}-{d}", [(3, 70), (1, 65)], heads=h, d=d, kv=kv) for kv in NARROW for h, d in HEADS),
    _attention("none", [], heads=(2, 1), d=16),
    *(
        _attention(f"heads-{h}-{d}", [(3, 70), (1, 65)], heads=h, d=d)
        for h in ((4, 1), (2, 2))
        for d in (8, 20, 128, 256)
    ),
    _attention("many-heads", [(2, 40)], heads=(64, 1), d=16),
    _attention("decode-32x512", [(1, 512)] * 32, timed=True),
    _attention("decode-1x4096", [(1, 4096)], timed=True),
    *(_attention(f"{kv}-decode-1x4096", [(1, 4096)], kv=kv, timed=True) for kv in NARROW),
    *(_attention(f"{kv}-prefill-512", [(512, 512)], kv=kv, timed=True) for kv in NARROW),
    _attention("prefill-512", [(512, 512)], timed=True),
    *(Case(name, op, build, timed=timed) for name, op, build, timed in record_inputs.table(RAGGED)),
    *(
        _rows("apply_rules", f"{r}x{v}", partial(inputs.rules, rows=r, vocab=v), 0, 1)
        for r, v in ((0, 5), (1, 9), (12, 40))
    ),
    _sample("greedy", 0.0, 5, 0.5, 0.1),
    _sample("greedy-ties", 0.0, 0, 1.0, 0.0, ties=True, vocab=333),
    _sample("plain", 0.8, 0, 1.0, 0.0),
    _sample("cold", 1e-6, 0, 1.0, 0.0),
    *(
        _sample(f"top-k-{k}{'-ties' if ties else ''}", 1.0, k, 1.0, 0.0, ties=ties)
        for k in (1, 7, 40, 999, 5000)
        for ties in (False, True)
    ),
    *(_sample(f"top-p-{p}", 1.3, 0, p, 0.0) for p in (0.0, 0.1, 0.9, 0.9999)),
    _sample("top-p-flat", 1.0, 0, 0.7, 0.0, spread=0.01),
    _sample("top-p-ties", 1.0, 0, 0.6, 0.0, ties=True, spread=1.0),
    *(_sample(f"min-p-{p}", 1.5, 0, 1.0, p) for p in (0.02, 0.3, 1.0)),
    _sample("all-filters", 1.4, 30, 0.8, 0.01),
    _sample("top-k-and-p", 2.0, 12, 0.6, 0.0),
    _sample("min-and-top-p", 2.0, 0, 0.7, 0.02),
    _sample("one-id", 1.0, 3, 0.5, 0.1, vocab=1),
    _sample("no-rows", 1.0, 3, 0.5, 0.1, rows=0),
    _sample("plain-49152", 1.0, 0, 1.0, 0.0, rows=4, vocab=49152),
    _sample("top-k-p-49152", 0.8, 40, 0.95, 0.0, rows=4, vocab=49152),
    _sample("top-p-49152", 0.8, 0, 0.95, 0.0, rows=4, vocab=49152),
    *(_broken_sample(t) for t in (0.0, 1.0)),
    *(_logprobs(f"top-{n}", n, 7, 300) for n in (0, 1, 20, 300)),
    _logprobs("ties", 30, 5, 200, ties=True),
    _logprobs("broken-rows", 50, 6, 50, broken=True),
    _logprobs("49152", 5, 4, 49152),
)
