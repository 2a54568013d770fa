"""Structured outputs without a server: `LLM.generate` on a model that knows nothing, so all form is the grammar's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import cli_models
import pytest
from extras import needs_compiler

from headrace import LLM, SamplingParams
from headrace.contract.errors import InvalidRequest
from headrace.contract.request import StructuredOutputs

pytestmark = needs_compiler
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    model = cli_models.write_model(tmp_path_factory.mktemp("tiny"))
    with LLM(model, kv_memory=4 << 20, num_threads=1) as made:
        yield made


def test_each_prompt_has_the_form_it_asks_for(llm: LLM) -> None:
    forms = [
        StructuredOutputs(regex="[ab]{3}-[0-9]{2}"),
        StructuredOutputs(json=SCHEMA),
        StructuredOutputs(json=json.dumps(SCHEMA)),
        StructuredOutputs(grammar='root ::= "<" [x-z] ">"'),
        StructuredOutputs(choice=["yes", "no"]),
        None,
    ]
    params = [SamplingParams(seed=i, max_tokens=120, structured_outputs=form) for i, form in enumerate(forms)]
    outputs = [output.outputs[0] for output in llm.generate(["go"] * len(forms), params)]
    assert [one.finish_reason for one in outputs[:-1]] == ["stop"] * 5
    regex, first, second, grammar, choice = (one.text for one in outputs[:-1])
    assert re.fullmatch("[ab]{3}-[0-9]{2}", regex)
    assert all(1 <= json.loads(text)["n"] <= 9 for text in (first, second))
    assert re.fullmatch("<[x-z]>", grammar)
    assert choice in ("yes", "no")


@pytest.mark.parametrize("form", [StructuredOutputs(regex="("), StructuredOutputs(json={"type": "strin"})], ids=str)
def test_what_cannot_be_compiled_ends_its_own_prompt_and_names_the_field(llm: LLM, form: StructuredOutputs) -> None:
    params = [SamplingParams(structured_outputs=form), SamplingParams(max_tokens=2)]
    refused, served = (output.outputs[0] for output in llm.generate(["go", "go"], params))
    assert (refused.finish_reason, refused.error_field) == ("error", "structured_outputs")
    assert refused.error is not None
    assert refused.error.startswith("structured_outputs: ")
    assert len(served.token_ids) == 2


def test_a_wish_that_says_nothing_is_refused_before_any_work(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="give exactly one of"):
        llm.generate("go", SamplingParams(structured_outputs=StructuredOutputs()))
