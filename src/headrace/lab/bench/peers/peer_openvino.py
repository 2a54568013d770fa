"""OpenVINO GenAI from a GGUF file, through its continuous-batching pipeline.

The pipeline tells no likelihoods of a prompt. For ``score`` the model it made of the file is saved and run through
OpenVINO itself, on the same device and with the same weights.
"""

from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai

CACHE_GIB = 2

Answer = dict[str, Any]


class Peer:
    def load(self, model: str, threads: int, **_: Any) -> Answer:
        self._file, self._threads = Path(model), threads
        settings = genai.SchedulerConfig()
        settings.cache_size = CACHE_GIB
        settings.max_num_seqs = 64
        settings.max_num_batched_tokens = 512
        settings.dynamic_split_fuse = True
        settings.enable_prefix_caching = True
        properties = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        self._pipeline = genai.ContinuousBatchingPipeline(str(self._file), settings, "CPU", properties)
        self._next_id = 0
        return {"version": f"openvino-genai {genai.__version__.split('-')[0]}", "detail": "continuous batching"}

    def generate(self, prompts: list[list[int]], max_tokens: int) -> Answer:
        start = perf_counter()
        handles = [self._add(ids, max_tokens) for ids in prompts]
        first = 0.0
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            if not first and any(handle.can_read() for handle in handles):
                first = perf_counter() - start
        total = perf_counter() - start
        outputs = [next(iter(handle.read_all())).generated_ids for handle in handles]
        return {"first_s": first, "total_s": total, "num_output": sum(map(len, outputs))}

    def steps(self, prompts: list[list[int]], num_steps: int) -> Answer:
        """Seconds of the last ``num_steps`` steps, in which every sequence decodes."""
        handles = [self._add(ids, num_steps + 8) for ids in prompts]
        times = []
        while self._pipeline.has_non_finished_requests():
            before = perf_counter()
            self._pipeline.step()
            times.append(perf_counter() - before)
        del handles
        return {"seconds": times[-num_steps:]}

    def score(self, windows: list[list[int]]) -> Answer:
        model = self._compiled()
        return {"sums": [self._score(model, ids) for ids in windows]}

    def _add(self, ids: list[int], max_tokens: int) -> Any:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = max_tokens, True, False
        self._next_id += 1
        return self._pipeline.add_request(self._next_id, openvino.Tensor(np.array([ids], np.int64)), config)

    def _compiled(self) -> Any:
        saved = self._file.with_name("openvino_model.xml")
        if not saved.exists():
            genai.LLMPipeline(str(self._file), "CPU", enable_save_ov_model=True)
        if not saved.exists():
            raise FileNotFoundError(f"{saved} was not saved, so prompts cannot be scored")
        properties = {"INFERENCE_NUM_THREADS": self._threads, "PERFORMANCE_HINT": "LATENCY"}
        return openvino.Core().compile_model(str(saved), "CPU", properties)

    def _score(self, model: Any, ids: list[int]) -> float:
        request = model.create_infer_request()
        count = len(ids)
        inputs = {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": np.ones((1, count), np.int64),
            "position_ids": np.arange(count, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        known = {name for port in model.inputs for name in port.names}
        logits = request.infer({name: value for name, value in inputs.items() if name in known})["logits"][0]
        if len(logits) != count:
            raise ValueError(f"{len(logits)} rows of logits for {count} tokens")
        return sum(log_likelihood(logits[i], ids[i + 1]) for i in range(count - 1))


def log_likelihood(logits: Any, token: int) -> float:
    """Natural logarithm of the softmax, in float64."""
    wide = logits.astype(np.float64)
    top = wide.max()
    return float(wide[token] - top - np.log(np.exp(wide - top).sum()))
