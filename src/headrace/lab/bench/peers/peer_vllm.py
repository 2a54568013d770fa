"""vLLM's CPU backend on the exported float32 directory, in one process; and its scheduler alone.

Its settings that are environment variables are given by whoever starts this program.
"""

from time import perf_counter
from typing import Any

import vllm

Answer = dict[str, Any]


class Peer:
    def load(self, model: str, threads: int, context: int = 8192, dtype: str = "float32", **_: Any) -> Answer:
        del threads  # set by the environment variable that OpenMP reads when torch is imported
        self._llm = vllm.LLM(
            model=model,
            dtype=dtype,
            max_model_len=context,
            max_num_seqs=64,
            max_num_batched_tokens=2048,
            enable_prefix_caching=True,
        )
        self._engine = self._llm.llm_engine
        self._next_id = 0
        return {"version": f"vllm {vllm.__version__}", "detail": f"CPU backend, {dtype}"}

    def generate(self, prompts: list[list[int]], max_tokens: int) -> Answer:
        first, total, num_output, _ = self._run(prompts, max_tokens)
        return {"first_s": first, "total_s": total, "num_output": num_output}

    def steps(self, prompts: list[list[int]], num_steps: int) -> Answer:
        """Seconds of the last ``num_steps`` steps, in which every sequence decodes."""
        return {"seconds": self._run(prompts, num_steps + 8)[3][-num_steps:]}

    def score(self, windows: list[list[int]]) -> Answer:
        params = vllm.SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        sums = []
        for ids in windows:
            (output,) = self._llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
            entries = zip(ids[1:], output.prompt_logprobs[1:])
            sums.append(sum(entry[token].logprob for token, entry in entries))
        return {"sums": sums}

    def _run(self, prompts: list[list[int]], max_tokens: int) -> tuple[float, float, int, list[float]]:
        params = vllm.SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        start, first, num_output, seconds = perf_counter(), 0.0, 0, []
        for ids in prompts:
            self._next_id += 1
            self._engine.add_request(str(self._next_id), {"prompt_token_ids": ids}, params)
        while self._engine.has_unfinished_requests():
            before = perf_counter()
            outputs = self._engine.step()
            seconds.append(perf_counter() - before)
            if outputs and not first:
                first = perf_counter() - start
            num_output += sum(len(output.outputs[0].token_ids) for output in outputs if output.finished)
        return first, perf_counter() - start, num_output, seconds
