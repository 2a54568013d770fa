"""Real vocabularies against ids recorded from an independent implementation (see make_goldens.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.api.text.tokenizer import Tokenizer, load_tokenizer
from headrace.models.sources import resolve_model

MODELS = {"smollm2": "smollm2-135m-instruct", "gemma3": "gemma3-270m"}
pytestmark = pytest.mark.model


@pytest.fixture(scope="module", params=sorted(MODELS))
def real(request: pytest.FixtureRequest) -> tuple[str, Tokenizer]:
    return request.param, load_tokenizer(resolve_model(MODELS[request.param]).path)


def test_ids_equal_the_recorded_ones(real: tuple[str, Tokenizer]) -> None:
    name, tokenizer = real
    rows = json.loads((Path(__file__).parent / "data" / f"{name}.json").read_text())
    assert len(rows) == 37
    for row in rows:
        for key in ("marked", "plain"):
            ids = tokenizer.encode(row["text"], add_special=False, parse_special=key == "marked")
            assert ids == row[key], (key, row["text"])


def test_decoding_gives_the_text_back(real: tuple[str, Tokenizer]) -> None:
    name, tokenizer = real
    rows = json.loads((Path(__file__).parent / "data" / f"{name}.json").read_text())
    for row in rows:
        expected = row["text"].replace("\u2581", " ") if name == "gemma3" else row["text"]
        assert tokenizer.decode(row["marked"], skip_special=False) == expected
        assert tokenizer.decode(row["plain"], skip_special=False) == expected


def test_the_usual_prompt(real: tuple[str, Tokenizer]) -> None:
    name, tokenizer = real
    if name == "smollm2":
        assert tokenizer.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
        assert tokenizer.decode([7042, 30]) == " Paris."
        assert tokenizer.bos_id == 1
        assert 2 in tokenizer.eos_ids
    else:
        assert tokenizer.encode("The capital of France is")[0] == tokenizer.bos_id == 2
        assert {1, 106} <= set(tokenizer.eos_ids)
