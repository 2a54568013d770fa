"""Structured outputs from Python: every kind of constraint through ``LLM.generate``, and what is refused of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import cli_models
import pytest

from headrace import LLM, SamplingParams
from headrace.contract.errors import InvalidRequest
from headrace.contract.request import StructuredOutputs

if find_spec("xgrammar") is None:
    pytest.skip("needs the grammar extra", allow_module_level=True)

AGE = {"type": "integer", "minimum": 1, "maximum": 99}
SCHEMA = {"type": "object", "properties": {"age": AGE}, "required": ["age"]}
GRAMMAR = 'root ::= "yes" | "no " [0-9] [0-9]'


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    model = cli_models.write_model(tmp_path_factory.mktemp("model"))
    with LLM(model, kv_memory=4 << 20, num_threads=1) as made:
        yield made


def params(**wanted: Any) -> SamplingParams:
    return SamplingParams(seed=5, max_tokens=100, structured_outputs=StructuredOutputs(**wanted))


def test_each_kind_of_constraint_shapes_its_own_text_of_a_batch(llm: LLM) -> None:
    letters, colours = "[a-c]{3}-[0-9]{2}", ["red", "blue"]
    asked = [params(regex=letters), params(json=SCHEMA), params(grammar=GRAMMAR), params(choice=colours)]
    answers = [output.outputs[0] for output in llm.generate(["x"] * 4, asked)]
    assert [answer.finish_reason for answer in answers] == ["stop"] * 4
    by_regex, by_schema, by_grammar, chosen = (answer.text for answer in answers)
    assert re.fullmatch(letters, by_regex)
    assert 1 <= json.loads(by_schema)["age"] <= 99
    assert re.fullmatch("yes|no [0-9][0-9]", by_grammar)
    assert chosen in colours


BAD: list[tuple[dict[str, Any], str]] = [
    ({"regex": "("}, "structured_outputs"),
    ({"grammar": "root ::= lost"}, "lost"),
    ({"json": {"type": "robot"}}, "robot"),
]


@pytest.mark.parametrize(("wanted", "words"), BAD)
def test_what_cannot_be_compiled_is_an_error_of_its_own_request(llm: LLM, wanted: dict[str, Any], words: str) -> None:
    plain = SamplingParams(temperature=0, max_tokens=2)
    bad, fine = (output.outputs[0] for output in llm.generate(["x", "x"], [params(**wanted), plain]))
    assert (bad.finish_reason, bad.token_ids, bad.text) == ("error", [], "")
    assert bad.error_field == "structured_outputs"
    assert words in str(bad.error)
    assert len(fine.token_ids) == 2


@pytest.mark.parametrize("wanted", [{}, {"regex": "a", "choice": ["a"]}, {"choice": []}])
def test_a_constraint_is_exactly_one_that_says_something(llm: LLM, wanted: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        llm.generate(["x"], params(**wanted))
