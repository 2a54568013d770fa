"""Compares Headrace with Hugging Face transformers on the same GGUF files: greedy ids and prompt logprobs.

    python scripts/compare_transformers.py [--smollm2 FILE] [--gemma3 FILE] [--cache build/compare-env]

Both sides run in float32 on the dequantised weights. The reference side runs in a virtual environment of its
own, made under ``--cache`` on first use from pinned packages, because the package itself must not depend on
transformers. Files not given are pulled by their catalogue names.

Passes (exit 0) when every difference of prompt logprobs is at most 1e-3 and every difference of ids starts
where the reference's two best logits are less than 1e-4 apart.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

PINS = ("torch==2.13.0", "transformers==4.57.6", "gguf==0.19.0", "accelerate==1.12.0")
MAX_LOGPROB_DIFFERENCE = 1e-3
MAX_TIE_MARGIN = 1e-4
CATALOGUE = {"smollm2": "smollm2-135m-instruct", "gemma3": "gemma3-270m"}
NUM_TOKENS = {"smollm2": 64, "gemma3": 32}
# As the files' own ``add_bos_token`` says; transformers' conversion overlooks that flag.
STARTS_WITH_BOS = ("gemma3",)

SHORT_PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n",
    "Water boils at",
    "Q: What is 17 + 25?\nA:",
    "The three primary colours are",
    "Dear Sir or Madam,\n\nI am writing to",
    "import numpy as np\n\nx = np.",
    "SELECT name, COUNT(*) FROM users",
    "In 1969, astronauts",
    "La capitale de l'Italie est",
    "Das Wetter ist heute",
    "1, 1, 2, 3, 5, 8, 13,",
    "Photosynthesis is the process by which",
    "To make a good cup of tea, first",
    "<html>\n  <head>\n    <title>",
    "The opposite of hot is",
    "She opened the letter and read:",
    "An electron has a charge of",
    "# Shopping list\n\n- milk\n- bread\n-",
    "Why did the chicken cross the road?",
    '{"name": "Ada", "born": 1815, "field": "',
    "Newton's second law states that",
    "Roses are red, violets are blue,",
)
_CARGO = ("salt", "timber", "copper wire", "lamp oil", "wool", "seed potatoes", "window glass", "rope")
_PORTS = ("Northhaven", "Calder Bay", "Saint Orrin", "Low Quay", "Marrow Point")


def long_prompts() -> list[str]:
    """Three texts of 600 to 1500 tokens, longer than Gemma's window of 512 tokens."""
    return [_log_book(lines, stride) for lines, stride in ((14, 3), (22, 5), (32, 7))]


def _log_book(num_lines: int, stride: int) -> str:
    lines = ["The log of the coaster Halcyon, kept by her mate.\n"]
    for i in range(num_lines):
        cargo, port = _CARGO[i * stride % len(_CARGO)], _PORTS[(i + stride) % len(_PORTS)]
        lines.append(
            f"Day {i + 1}: took on {11 * i * stride % 97 + 3} crates of {cargo} at {port}, "
            f"wind {'north' if i % 3 else 'south-west'}, barometer {990 + i * stride % 37}.\n"
        )
    return "".join([*lines, "At the end of the voyage the captain asked how the cargo had fared, and"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--smollm2", type=Path, help="SmolLM2-135M-Instruct GGUF")
    parser.add_argument("--gemma3", type=Path, help="Gemma 3 270M GGUF")
    parser.add_argument("--cache", type=Path, default=Path("build/compare-env"), help="environment and results")
    parser.add_argument("--only", choices=tuple(CATALOGUE), help="compare one model only")
    parser.add_argument("--reference-role", nargs=3, metavar=("MODEL", "FILE", "OUT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.reference_role:
        model, file, out = args.reference_role
        Path(out).write_text(json.dumps(reference_results(model, Path(file))))
        return 0
    python = ensure_environment(args.cache)
    models = [args.only] if args.only else list(CATALOGUE)
    passed = [compare_model(name, getattr(args, name), args.cache, python) for name in models]
    return 0 if all(passed) else 1


def compare_model(name: str, file: Path | None, cache: Path, python: Path) -> bool:
    """Run both sides on one model, leave their results as JSON in ``cache``, print a table."""
    file = file or _pull(name)
    reference_file = cache / f"{name}-reference.json"
    command = [str(python), __file__, "--reference-role", name, str(file), str(reference_file)]
    subprocess.run(command, check=True)
    reference = json.loads(reference_file.read_text())
    ours = headrace_results(file, [case["prompt"] for case in reference], NUM_TOKENS[name])
    (cache / f"{name}-headrace.json").write_text(json.dumps(ours))
    print(f"{name}: {file.name}, {len(reference)} prompts x {NUM_TOKENS[name]} tokens")
    return report(reference, ours)


def report(reference: list[dict[str, Any]], ours: list[dict[str, Any]]) -> bool:
    """Print one line per prompt. True when every difference is explained."""
    good, worst = True, 0.0
    for index, (theirs, mine) in enumerate(zip(reference, ours, strict=True)):
        difference = logprob_difference(theirs, mine)
        worst = max(worst, difference)
        verdict, explained = judge_ids(theirs, mine)
        good = good and explained and difference <= MAX_LOGPROB_DIFFERENCE
        print(f"  {index:2} {len(theirs['prompt']):5} prompt tokens  logprobs {difference:.1e}  {verdict}")
    print(f"  largest difference of a prompt logprob {worst:.2e}: {'pass' if good else 'FAIL'}")
    return good


def logprob_difference(theirs: dict[str, Any], mine: dict[str, Any]) -> float:
    pairs = list(zip(theirs["prompt_logprobs"], mine["prompt_logprobs"], strict=True))
    differences = [abs(a - b) for a, b in pairs]
    return math.inf if any(math.isnan(d) for d in differences) else max(differences)


def judge_ids(theirs: dict[str, Any], mine: dict[str, Any]) -> tuple[str, bool]:
    """Whether the ids agree, or part where the reference itself hardly prefers one."""
    if len(theirs["ids"]) != len(mine["ids"]):
        return f"{len(mine['ids'])} ids instead of {len(theirs['ids'])}", False
    for step, (a, b) in enumerate(zip(theirs["ids"], mine["ids"])):
        if a != b:
            margin = theirs["margins"][step]
            explained = margin < MAX_TIE_MARGIN
            word = "tie" if explained else "UNEXPLAINED"
            return f"ids differ from token {step}: {a} / {b}, margin {margin:.1e} ({word})", explained
    return f"{len(theirs['ids'])} ids equal", True


def headrace_results(file: Path, prompts: list[list[int]], num_tokens: int) -> list[dict[str, Any]]:
    """This project's side, through its public interface. All prompts run as one batch."""
    from headrace import LLM, SamplingParams

    params = SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True, prompt_logprobs=1)
    llm = LLM(model=str(file), dtype="float32")
    results = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params)
    return [
        {
            "prompt": ids,
            "ids": list(result.outputs[0].token_ids),
            "prompt_logprobs": [
                entry[token].logprob for token, entry in zip(ids[1:], result.prompt_logprobs[1:], strict=True)
            ],
        }
        for ids, result in zip(prompts, results, strict=True)
    ]


def reference_results(name: str, file: Path) -> list[dict[str, Any]]:
    """The other side; runs inside the environment with transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    prompts = SHORT_PROMPTS if name == "smollm2" else long_prompts()
    encoded = [tokenizer(text, add_special_tokens=name in STARTS_WITH_BOS)["input_ids"] for text in prompts]
    return [reference_case(model, ids, NUM_TOKENS[name]) for ids in encoded]


def reference_case(model: Any, prompt: list[int], num_tokens: int) -> dict[str, Any]:
    """Greedy ids, the gap between the two best logits at each step, and the prompt's logprobs."""
    import torch

    ids: list[int] = []
    margins: list[float] = []
    with torch.inference_mode():
        out = model(torch.tensor([prompt]), use_cache=True)
        scores = out.logits[0, :-1].float().log_softmax(-1)
        logprobs = scores.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0].tolist()
        while len(ids) < num_tokens:
            best = out.logits[0, -1].float().topk(2)
            ids.append(int(best.indices[0]))
            margins.append(float(best.values[0] - best.values[1]))
            out = model(torch.tensor([[ids[-1]]]), past_key_values=out.past_key_values, use_cache=True)
    return {"prompt": prompt, "ids": ids, "margins": margins, "prompt_logprobs": logprobs}


def ensure_environment(cache: Path) -> Path:
    """The Python of the reference environment. The marker makes an interrupted installation start again."""
    python, marker = cache / "venv" / "bin" / "python", cache / "venv" / "installed.txt"
    if not marker.exists() or marker.read_text().split() != list(PINS):
        venv.create(cache / "venv", with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PINS], check=True)
        marker.write_text("\n".join(PINS))
    return python


def _pull(name: str) -> Path:
    from headrace.models.sources import resolve_model

    return Path(resolve_model(CATALOGUE[name]).path)


if __name__ == "__main__":
    sys.exit(main())
