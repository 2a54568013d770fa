"""Records token ids of an independent implementation (llama.cpp) for the texts in ``golden_texts.py``.

Not a test. In a virtual environment of its own, with the model files at hand:

    pip install xllamacpp==2026.10.11549
    python tests/unit/text/make_goldens.py smollm2 SmolLM2-135M-Instruct.Q4_1.gguf
    python tests/unit/text/make_goldens.py gemma3 gemma-3-270m-q4_k_m.gguf

writes ``data/<name>.json``: for each text its ids with control spellings parsed ("marked") and not ("plain"),
without BOS.
"""

from __future__ import annotations

import importlib
import json
import sys
import urllib.request
from pathlib import Path

from golden_texts import CONTROL, PLAIN


def tokenize(server: str, text: str, parse_special: bool) -> list[int]:
    body = json.dumps({"content": text, "add_special": False, "parse_special": parse_special}).encode()
    request = urllib.request.Request(f"{server}/tokenize", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        ids: list[int] = json.load(response)["tokens"]
    return ids


def main(name: str, model: str) -> None:
    oracle = importlib.import_module("xllamacpp")
    params = oracle.CommonParams()
    params.model.path = model
    params.n_ctx = 64
    server = oracle.Server(params)
    rows = [
        {"text": text} | {key: tokenize(server.listening_address, text, key == "marked") for key in ("marked", "plain")}
        for text in PLAIN + CONTROL
    ]
    lines = ",\n".join(json.dumps(row, ensure_ascii=True) for row in rows)
    target = Path(__file__).parent / "data" / f"{name}.json"
    target.write_text(f"[\n{lines}\n]\n", "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
