"""lm-eval through the server against the same model in the library: equal log-probabilities, to the last bit.

Not part of CI. ``pip install 'lm-eval[api]'`` in an environment of its own, then
``python scripts/check_lm_eval.py PATH/TO/lm_eval gsm8k_test.jsonl -- --threads 2``. The file holds one question and
answer a line; of it a task of two choices is made: a question's own answer, or the next one's. Starts ``headrace
serve`` with what follows ``--``, lets lm-eval score the task through ``/v1/completions`` (it tokenizes with
``/tokenize``), then scores the same tokens without a server. Prints one JSON object; exits with 1 when a value differs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from headrace import LLM, SamplingParams
from local_server import local_server

TASK = "headrace_choices"
YAML = """task: {task}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: label
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""


def write_task(folder: Path, rows: list[dict[str, Any]], count: int) -> None:
    """``count`` questions; the right answer is the first one where their number is even."""
    data, lines = folder / "choices.jsonl", []
    for number in range(count):
        own, other = rows[number]["answer"], rows[number + 1]["answer"]
        choices = [own, other] if number % 2 == 0 else [other, own]
        lines.append({"question": rows[number]["question"], "choices": choices, "label": number % 2})
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "task.yaml").write_text(YAML.format(task=TASK, data=data))


def harness(tool: str, url: str, folder: Path, model: str) -> tuple[float, list[dict[str, Any]]]:
    """Its accuracy, and per question what it asked and was told."""
    settings = f"model={model},base_url={url}/v1/completions,num_concurrent=4,max_retries=1"
    command = [tool, "run", "--model", "local-completions", "--model_args", settings, "--tasks", TASK]
    command += ["--include_path", str(folder), "--output_path", str(folder / "out"), "--log_samples"]
    subprocess.run(command, check=True, stdout=sys.stderr)
    [results] = (folder / "out").rglob("results_*.json")
    [samples] = (folder / "out").rglob("samples_*.jsonl")
    accuracy = json.loads(results.read_text())["results"][TASK]["acc,none"]
    return accuracy, [json.loads(line) for line in samples.read_text().splitlines()]


def scored(llm: LLM, prompt: str, choice: str) -> float:
    """The sum that the harness makes of the choice's tokens."""
    assert llm.tokenizer is not None
    head = llm.tokenizer.encode(prompt, add_special=False)
    ids = llm.tokenizer.encode(prompt + choice, add_special=False)
    wanted = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1)
    [output] = llm.generate([{"prompt_token_ids": ids}], wanted)
    assert output.prompt_logprobs is not None
    told = [entry[token].logprob for entry, token in zip(output.prompt_logprobs, ids) if entry is not None]
    return sum(told[len(head) - 1 :])  # the first token has none


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lm_eval", help="the harness's command")
    parser.add_argument("data", type=Path)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("rest", nargs="*", help="after --: options of headrace serve")
    given = parser.parse_intermixed_args()  # options may stand behind what they are for
    rows = [json.loads(line) for line in given.data.read_text("utf-8").splitlines()[: given.count + 1]]
    with tempfile.TemporaryDirectory() as name:
        write_task(Path(name), rows, len(rows) - 1)
        with local_server(["--model", given.model, *given.rest]) as server:
            accuracy, samples = harness(given.lm_eval, server.url, Path(name), given.model)
    with LLM(given.model) as llm:
        pairs = [
            (float(told[0]), scored(llm, *asked))
            for sample in samples
            for told, asked in zip([one[0] for one in sample["resps"]], arguments(sample))
        ]
    worst = max(abs(one - other) for one, other in pairs)
    print(
        json.dumps({"questions": len(samples), "accuracy": accuracy, "scores": len(pairs), "worst_difference": worst})
    )
    return int(worst > 0)


def arguments(sample: dict[str, Any]) -> list[tuple[str, str]]:
    """Prompt and choice of each request."""
    asked = sample["arguments"]
    ordered = [asked[key] for key in sorted(asked)] if isinstance(asked, dict) else asked
    return [tuple(one[key] for key in sorted(one))[:2] if isinstance(one, dict) else tuple(one[:2]) for one in ordered]


if __name__ == "__main__":
    sys.exit(main())
