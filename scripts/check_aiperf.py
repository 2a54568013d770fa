"""aiperf against a server of ours: a load generator that nobody here wrote must complete its runs without an error.

Not part of CI. ``pip install aiperf`` in an environment of its own, then
``python scripts/check_aiperf.py PATH/TO/aiperf -- --threads 2``. Starts ``headrace serve`` with what follows ``--``,
writes the model's vocabulary where aiperf can read it, and lets it profile chat and text completions, streamed and not.
(Told to be offline, aiperf looks for vocabularies in its hub's cache alone.) Prints one line per run; exits with 1 when
one failed, lost a request, or counted other tokens than were asked for.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from headrace.api.text.tokenizer import load_tokenizer
from headrace.models.sources import resolve_model
from local_server import local_server

RUN_S = 600.0
ENDPOINTS = ("chat", "completions")


def write_vocabulary(model: str, folder: Path) -> None:
    source = resolve_model(model)
    if source.tokenizer_path is None:
        raise SystemExit(f"{model} has no tokenizer")
    (folder / "tokenizer.json").write_text(load_tokenizer(source.tokenizer_path).as_json())
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')


def profile(tool: str, url: str, vocabulary: Path, given: argparse.Namespace, endpoint: str, stream: bool) -> list[str]:
    """What was wrong with one run; nothing when all is well."""
    with tempfile.TemporaryDirectory() as name:
        command = [tool, "profile", "--model", given.model, "--url", url, "--endpoint-type", endpoint]
        command += ["--tokenizer", str(vocabulary), "--artifact-dir", name, "--ui", "none", "--use-server-token-count"]
        command += ["--request-count", str(given.requests), "--concurrency", str(given.concurrency)]
        command += ["--synthetic-input-tokens-mean", "32", "--synthetic-input-tokens-stddev", "0"]
        command += ["--output-tokens-mean", str(given.tokens), "--output-tokens-stddev", "0"]
        command += ["--extra-inputs", "ignore_eos:true", "--random-seed", "1", *(["--streaming"] if stream else [])]
        done = subprocess.run(command, stdout=sys.stderr, timeout=RUN_S, check=False)
        if done.returncode:
            return [f"it ended with {done.returncode}"]
        [found] = Path(name).rglob("profile_export_aiperf.json")
        return judged(json.loads(found.read_text()), given)


def judged(results: dict[str, Any], given: argparse.Namespace) -> list[str]:
    wrong = []
    count = (results.get("request_count") or {}).get("avg")
    if count != given.requests:
        wrong.append(f"{count} requests of {given.requests} were completed")
    if errors := results.get("error_summary"):
        wrong.append(f"errors: {json.dumps(errors)[:300]}")
    tokens = (results.get("output_sequence_length") or {}).get("avg")
    if tokens != given.tokens:
        wrong.append(f"answers of {tokens} tokens instead of {given.tokens}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("aiperf", help="the tool's command")
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("rest", nargs="*", help="after --: options of headrace serve")
    given = parser.parse_intermixed_args()  # options may stand behind what they are for
    failed = 0
    with tempfile.TemporaryDirectory() as folder, local_server(["--model", given.model, *given.rest]) as server:
        write_vocabulary(given.model, Path(folder))
        for endpoint in ENDPOINTS:
            for stream in (True, False):
                wrong = profile(given.aiperf, server.url, Path(folder), given, endpoint, stream)
                failed += bool(wrong)
                print(f"{endpoint}, {'streamed' if stream else 'whole'}: {'; '.join(wrong) or 'ok'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
