"""This engine as one of the runners, through its public front, so that all are measured by the same program."""

from typing import Any

from headrace import LLM, __version__
from headrace.lab.bench.engine_runs import run_requests, step_seconds
from headrace.lab.bench.perplexity import score_windows

Answer = dict[str, Any]


class Peer:
    def load(self, model: str, threads: int, dtype: str = "auto", kv_memory: int | None = None, **_: Any) -> Answer:
        self._llm = LLM(model, dtype=dtype, num_threads=threads, kv_memory=kv_memory, kv_store="off")
        return {"version": f"headrace {__version__}", "detail": f"dtype {dtype}"}

    def generate(self, prompts: list[list[int]], max_tokens: int) -> Answer:
        run = run_requests(self._llm, prompts, max_tokens)
        return {"first_s": run.first_s, "total_s": run.total_s, "num_output": run.num_output}

    def steps(self, prompts: list[list[int]], num_steps: int) -> Answer:
        return {"seconds": step_seconds(self._llm, prompts, num_steps)}

    def score(self, windows: list[list[int]]) -> Answer:
        return {"sums": score_windows(self._llm, windows)}
