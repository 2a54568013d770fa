"""The worked examples of the scheduling rules, played on the real scheduler and kept as recordings.

``python -m headrace.lab.worked_examples`` writes them again; a test holds the files equal to what this
makes. Each example reaches its starting state by real steps. The numbers are contracts: they are never
adjusted to the code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from .example_script import Script, prompt_of
from .phase_examples import d_e1, d_e3, decode_order

RECORDINGS = Path(__file__).parent / "recordings"


def v_e1(path: Path) -> None:
    """(a) is step 2, (b) step 3. D only fills the first step, so that B's first slice is 4 tokens long."""
    script = Script(
        path,
        "V-E1 (a) step 2: one budget of 8; (b) step 3: A verifies 3 drafts",
        "ABCD",
        num_blocks=33,
        block_size=16,
        token_budget=8,
        input_budget=8,
        max_model_len=128,
    )
    script.add("D", prompt_of("D", 3), max_tokens=1)
    script.add("A", prompt_of("A", 9))
    script.step()  # D 3, A 5 of 9
    script.add("B", prompt_of("B", 10))
    script.step()  # A 4, B 4 of 10
    script.add("C", prompt_of("C", 5))
    script.step()  # (a): A 1, B 6, C 1
    script.draft("A", [21, 22, 23])
    script.step({"A": [21, 9]})  # (b): one draft accepted, one token sampled
    script.recorder.close()


def v_e1_budgets(path: Path) -> None:
    script = Script(
        path,
        "V-E1 (c): a token budget of 8, an input budget of 12 that also pays 2 draft slots per sequence",
        "XY",
        num_blocks=33,
        block_size=16,
        token_budget=8,
        input_budget=12,
        draft_slots=2,
        max_model_len=128,
    )
    script.add("X", prompt_of("X", 4))
    script.add("Y", prompt_of("Y", 4))
    script.step()
    script.recorder.close()


def v_e2(path: Path) -> None:
    script = Script(
        path,
        "V-E2: both blocks of the prompt are cached; one token must be computed, so one block is taken",
        "XY",
        num_blocks=17,
        block_size=16,
        token_budget=64,
        max_model_len=128,
    )
    script.add("X", prompt_of("P", 32), max_tokens=1)
    script.step()
    script.add("Y", prompt_of("P", 32), max_tokens=1)
    script.step()
    script.recorder.close()


def v_e2_pool(path: Path) -> None:
    """A pool of five. Blocks 1 and 2 stay with H; before step 1 the free queue is [5, 3, 4]."""
    script = Script(
        path,
        "V-E2, pool trace: hit on block 3, free it, hand out blocks 5 and 4; block 3 can still be hit",
        "HPQRST",
        num_blocks=6,
        block_size=16,
        token_budget=128,
        max_model_len=128,
    )
    script.add("H", prompt_of("H", 17))
    script.add("P", prompt_of("P", 16))
    script.add("Q", prompt_of("Q", 16))
    script.step()  # H gets 1 and 2, P gets 3, Q gets 4
    script.finish("P", "Q")
    script.add("R", [*prompt_of("P", 16), 5])
    script.step()  # R hits 3; its 17th token needs a block: 5
    script.finish("R")
    script.add("S", prompt_of("S", 17))
    script.step()  # S gets 5 and 4: what 4 held is forgotten
    script.finish("S")
    script.add("T", [*prompt_of("P", 16), 5])
    script.step()  # T hits 3
    script.recorder.close()


def v_e3(path: Path) -> None:
    """The example is step 3. The other sequences only put the free blocks into the order it asks for."""
    script = Script(
        path,
        "V-E3 (step 3): packing slices of 2, 1 and 3 tokens; block tables [7, 2], [1, 3, 5], [8]",
        "ABCGEVWXYZ",
        num_blocks=9,
        block_size=4,
        token_budget=32,
        long_prefill_threshold=4,
        max_model_len=32,
        full_sequence_must_fit=False,
    )
    shared = prompt_of("B", 10)
    script.add("G", shared[:8], max_tokens=1)
    script.add("E", prompt_of("E", 1))
    script.step()  # G gets 1, E gets 2
    for name in "VWXYZ":
        script.add(name, prompt_of(name, 1))
    script.step()  # G gets 3 and ends: 1 and 3 stay cached. V to Z get 4 to 8
    script.finish("V", "X", "Z", "E", "W", "Y")  # unnamed blocks go to the head: next are 7, 5, 2, 8
    script.add("A", prompt_of("A", 6))
    script.add("B", shared)
    script.step()  # A 4 of 6 in 7; B hits 1 and 3, computes 2 in 5
    script.add("C", prompt_of("C", 3))
    script.step()
    script.recorder.close()


def twins(path: Path) -> None:
    script = Script(
        path,
        "Twins: two equal prompts of 40 in one step; the second shares two blocks of the first",
        "XY",
        num_blocks=17,
        block_size=16,
        token_budget=64,
        max_model_len=128,
    )
    script.add("X", prompt_of("T", 40))
    script.add("Y", prompt_of("T", 40))
    script.step()
    script.step()
    script.recorder.close()


EXAMPLES: Mapping[str, Callable[[Path], None]] = {
    "v-e1": v_e1,
    "v-e1-budgets": v_e1_budgets,
    "v-e2": v_e2,
    "v-e2-pool": v_e2_pool,
    "v-e3": v_e3,
    "twins": twins,
    "d-e1": d_e1,
    "d-e3": d_e3,
    "decode-order": decode_order,
}


def write_all(folder: Path) -> None:
    """Writes every example as ``<name>.jsonl``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in EXAMPLES.items():
        path = folder / f"{name}.jsonl"
        path.unlink(missing_ok=True)
        make(path)


if __name__ == "__main__":
    write_all(RECORDINGS)
