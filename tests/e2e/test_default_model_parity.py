"""The promises to the bit, on real weights: exact float32, and weights as stored with keys and values in bfloat16."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from harness import make_engine, request, run

from headrace import _kernels
from headrace.api.launch import open_tokenizer
from headrace.contract.request import Request
from headrace.kernels.resolve import resolve_ops
from headrace.models.context import Model
from headrace.models.registry import load_model
from headrace.models.sources import DEFAULT_MODEL, resolve_model
from headrace.models.weights import open_checkpoint

pytestmark = pytest.mark.model

TEXTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived",
    "def fibonacci(n):\n",
    "Water boils at",
    "The quick brown fox jumps over the lazy dog. " * 9,
    "Die Hauptstadt von Deutschland ist",
    "1, 1, 2, 3, 5, 8, 13,",
    "The quick brown fox jumps over the lazy dog. " * 9 + "And then",
)


@dataclass
class Real:
    model: Model
    prompts: list[list[int]]
    kv_dtype: str

    def requests(self) -> list[Request]:
        sampled = {"temperature": 1.0, "top_p": 0.9, "seed": 3}
        return [
            request(ids, max_tokens=6, **(sampled if i % 3 == 2 else {"prompt_logprobs": 1} if i % 3 == 1 else {}))
            for i, ids in enumerate(self.prompts)
        ]

    def bits(self, requests: list[Request] | None = None, **options: object) -> list[object]:
        settings: dict[str, object] = {"num_blocks": 400, "block_size": 32, "max_model_len": 512} | options
        engine = make_engine(self.model, kv_dtype=self.kv_dtype, **settings)
        outcomes = run(engine, requests or self.requests())
        self.preemptions = engine.core.num_preemptions
        engine.close()
        return [outcome.bits for outcome in outcomes]


@pytest.fixture(scope="module", params=[True, False], ids=["float32", "stored"])
def real(request: pytest.FixtureRequest) -> Real:
    source = resolve_model(DEFAULT_MODEL)
    tokenizer = open_tokenizer(source)
    assert tokenizer is not None
    model = load_model(open_checkpoint(source.path), resolve_ops("cpu", strict=True), exact=request.param)
    return Real(model, [tokenizer.encode(text) for text in TEXTS], kv_dtype="float32" if request.param else "int16")


@pytest.fixture(scope="module")
def expected(real: Real) -> list[object]:
    """Each request alone, synchronously, op by op, prefill whole, nothing cached."""
    plain = {"overlap": False, "graphs": "none", "prefix_caching": False}
    return [real.bits([item], **plain)[0] for item in real.requests()]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"overlap": False},
        {"token_budget": 17},
        {"token_budget": 1, "max_seqs": 3},
        {"block_size": 16, "num_blocks": 800},
        {"prefix_caching": False, "graphs": "piecewise"},
    ],
    ids=str,
)
def test_nothing_changes_a_bit(real: Real, expected: list[object], options: dict[str, object]) -> None:
    assert real.bits(**options) == expected


def test_preempted_equals_not_preempted(real: Real, expected: list[object]) -> None:
    small = {"num_blocks": 14, "block_size": 16, "max_model_len": 160, "full_sequence_must_fit": False}
    assert real.bits(**small, token_budget=32) == expected
    assert real.preemptions > 0


def test_thread_counts_do_not_matter(real: Real, expected: list[object]) -> None:
    before = _kernels.num_threads()
    try:
        for threads in (1, 3):
            _kernels.set_num_threads(threads)
            assert real.bits() == expected
    finally:
        _kernels.set_num_threads(before)
