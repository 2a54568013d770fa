"""Hugging Face transformers in float32 on the dequantised GGUF file, and the export of it for engines that need one.

Prompts of a batch have one length, so no padding is needed. A common beginning is computed once and its cache repeated.
"""

from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers

Answer = dict[str, Any]


class Peer:
    def load(self, model: str, threads: int, **_: Any) -> Answer:
        torch.set_num_threads(threads)
        path = Path(model)
        self._where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
        self._model = transformers.AutoModelForCausalLM.from_pretrained(**self._where, dtype=torch.float32)
        self._model.eval()
        return {"version": f"transformers {transformers.__version__}", "detail": f"torch {torch.__version__}, float32"}

    def generate(self, prompts: list[list[int]], max_tokens: int) -> Answer:
        first, total, _ = self._run(prompts, max_tokens)
        return {"first_s": first, "total_s": total, "num_output": len(prompts) * max_tokens}

    def steps(self, prompts: list[list[int]], num_steps: int) -> Answer:
        return {"seconds": self._run(prompts, num_steps + 1)[2]}

    @torch.inference_mode()
    def score(self, windows: list[list[int]]) -> Answer:
        sums = []
        for ids in windows:
            scores = self._model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
            sums.append(float(scores.gather(1, torch.tensor(ids[1:])[:, None]).double().sum()))
        return {"sums": sums}

    def export(self, target: str) -> Answer:
        """Weights and tokenizer as a Hugging Face directory."""
        self._model.save_pretrained(target)
        transformers.AutoTokenizer.from_pretrained(**self._where).save_pretrained(target)
        return {}

    @torch.inference_mode()
    def _run(self, prompts: list[list[int]], max_tokens: int) -> tuple[float, float, list[float]]:
        shared = common_length(prompts)
        start = perf_counter()
        cache = None
        if shared:
            prefix = torch.tensor([prompts[0][:shared]])
            cache = self._model(prefix, use_cache=True, logits_to_keep=1).past_key_values
            cache.batch_repeat_interleave(len(prompts))
        ids = torch.tensor([prompt[shared:] for prompt in prompts])
        first, seconds = 0.0, []
        for step in range(max_tokens):
            before = perf_counter()
            out = self._model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache, ids = out.past_key_values, out.logits[:, -1].argmax(-1, keepdim=True)
            if step == 0:
                first = perf_counter() - start
            else:
                seconds.append(perf_counter() - before)
        return first, perf_counter() - start, seconds


def common_length(prompts: list[list[int]]) -> int:
    """Tokens that all prompts begin with, when there are several; each keeps one of its own."""
    if len(prompts) < 2:
        return 0
    shortest = min(map(len, prompts)) - 1
    return next((i for i in range(shortest) if len({ids[i] for ids in prompts}) > 1), shortest)
