"""What one input line asks for, checked. Each error names the field of the line that is at fault.

A line is an object with one of ``prompt`` (text), ``prompt_token_ids`` or ``messages``; optionally ``id``, fields
of ``SamplingParams``, ``cache_salt``, ``priority`` and ``kv_class``. Anything else is refused rather than ignored.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.contract.errors import InvalidRequest
from headrace.contract.request import SamplingParams

from .lines import MAX_LINE_BYTES, Line

if TYPE_CHECKING:
    from headrace.api.llm import LLM
    from headrace.api.prompts import Prepared

PROMPTS = ("prompt", "prompt_token_ids", "messages")
EXTRAS = ("cache_salt", "priority", "kv_class")
SAMPLING = frozenset(SamplingParams.__struct_fields__)
AT_FIELD = re.compile(r" - at .*?\$\.?(\w*).*$")

LineId = str | int | None


def decode(line: Line) -> dict[str, Any]:
    """The line's object. Raises InvalidRequest for anything else."""
    if line.data is None:
        raise InvalidRequest("line", f"is longer than {MAX_LINE_BYTES} bytes")
    try:
        wish = msgspec.json.decode(line.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest("line", f"is not JSON: {error}") from error
    if not isinstance(wish, dict):
        raise InvalidRequest("line", 'must be a JSON object, such as {"prompt": "some text"}')
    return wish


def read_id(wish: dict[str, Any]) -> LineId:
    """The id that the caller gave, if any."""
    given: Any = wish.get("id")
    if given is None or (isinstance(given, str | int) and not isinstance(given, bool)):
        return given
    raise InvalidRequest("id", f"must be text or a whole number, got {given!r}")


def prepare(llm: LLM, wish: dict[str, Any], defaults: SamplingParams) -> Prepared:
    """The wish as requests. Raises InvalidRequest."""
    given = [name for name in PROMPTS if wish.get(name) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise InvalidRequest("prompt", f"give exactly one of {', '.join(PROMPTS)}; found {found}")
    known = {"id", *PROMPTS, *EXTRAS} | SAMPLING
    if unknown := sorted(set(wish) - known):
        raise InvalidRequest(unknown[0], "is not a field of a prompt or of its sampling")
    prompt = {name: wish[name] for name in EXTRAS if name in wish}
    if given[0] == "messages":
        prompt |= _chat_prompt(llm, wish["messages"])
    else:
        prompt[given[0]] = wish[given[0]]
    return llm.prepare(prompt, _sampling(wish, defaults))


def _chat_prompt(llm: LLM, messages: Any) -> dict[str, Any]:
    if llm.tokenizer is not None and llm.tokenizer.chat_template is None:
        raise InvalidRequest("messages", "this model has no chat template (a base model); give a prompt instead")
    return llm.chat_prompt(messages)


def _sampling(wish: dict[str, Any], defaults: SamplingParams) -> SamplingParams:
    given = {name: value for name, value in wish.items() if name in SAMPLING}
    if not given:
        return defaults
    try:
        return msgspec.convert({**msgspec.structs.asdict(defaults), **given}, SamplingParams, str_keys=True)
    except msgspec.ValidationError as error:
        raise _named(error) from error


def _named(error: msgspec.ValidationError) -> InvalidRequest:
    """The decoder's complaint with the field in front."""
    text = str(error)
    match = AT_FIELD.search(text)
    field = match[1] if match and match[1] else "line"
    return InvalidRequest(field, AT_FIELD.sub("", text).replace("`", "").lower())
