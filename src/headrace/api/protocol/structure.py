"""``response_format`` and ``structured_outputs`` as bodies spell them."""

from __future__ import annotations

from typing import Any

from headrace.contract.errors import InvalidRequest
from headrace.contract.near import check_fields
from headrace.contract.request import STRUCTURES, StructuredOutputs


def structure(response_format: dict[str, Any] | None, extension: dict[str, Any] | None) -> StructuredOutputs | None:
    """What the output must look like; None: anything. Raises InvalidRequest naming the field."""
    formatted = None if response_format is None else from_format(response_format, "response_format")
    if extension is None:
        return formatted
    if formatted is not None:
        raise InvalidRequest("structured_outputs", "cannot go together with response_format")
    return _from_extension(extension)


def from_format(value: dict[str, Any], field: str) -> StructuredOutputs | None:
    """OpenAI's ``{"type": ...}``. The schema sits in ``json_schema``, or beside the type (Responses). Unless it is
    ``strict``, what no answer can be held to is left out; Anthropic's (``output_config.format``) always is."""
    kind = value.get("type")
    if kind in ("text", "json_object"):
        if given := {"schema", "json_schema"} & set(value):
            raise InvalidRequest(f"{field}.{min(given)}", f"is not for {kind}: type json_schema takes a schema")
        check_fields(field, value, ("type",))
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputs(json_object=True, field=field)
    if kind != "json_schema":
        raise InvalidRequest(f"{field}.type", f"must be text, json_object or json_schema, got {kind!r}")
    inner = value.get("json_schema", value)
    _check_keys(value, field)
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if not isinstance(schema, dict | bool):
        nested = "json_schema" in value or field == "response_format"  # as Chat spells it; Responses keeps it flat
        where = f"{field}.json_schema.schema" if nested else f"{field}.schema"
        raise InvalidRequest(where, "must be a JSON schema")
    strict = value.get("json_schema", value).get("strict") is True or field.startswith("output_config")
    return StructuredOutputs(json=schema, field=field, lenient=not strict)


SCHEMA_KEYS = ("name", "description", "schema", "strict")  # name and description are labels, without effect


def _check_keys(value: dict[str, Any], field: str) -> None:
    if "json_schema" not in value:
        check_fields(field, value, ("type", *SCHEMA_KEYS))
        return
    check_fields(field, value, ("type", "json_schema"))
    if isinstance(inner := value["json_schema"], dict):
        check_fields(f"{field}.json_schema", inner, SCHEMA_KEYS)


def _from_extension(value: dict[str, Any]) -> StructuredOutputs:
    unknown = sorted(set(value) - set(STRUCTURES))
    if unknown:
        raise InvalidRequest(f"structured_outputs.{unknown[0]}", f"unknown; choose one of {', '.join(STRUCTURES)}")
    kinds: dict[str, Any] = {
        "json": (str, dict, bool),
        "json_object": bool,
        "regex": str,
        "choice": list,
        "grammar": str,
        "structural_tag": dict,
    }
    for name, given in value.items():
        if given is not None and not isinstance(given, kinds[name]):
            raise InvalidRequest(f"structured_outputs.{name}", f"has the wrong type {type(given).__name__}")
    if not all(isinstance(text, str) for text in value.get("choice") or ()):
        raise InvalidRequest("structured_outputs.choice", "must hold texts")
    return StructuredOutputs(**value)
