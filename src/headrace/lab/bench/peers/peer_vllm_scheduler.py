"""vLLM's own scheduler, driven with requests but without a model: microseconds per step and per prefix lookup."""

from statistics import median
from time import perf_counter
from typing import Any

import torch
import vllm
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

Answer = dict[str, Any]
MAX_MODEL_LEN = 8192


class Peer:
    def load(self, model: str, threads: int, block_size: int = 32, **_: Any) -> Answer:
        del threads  # scheduling is one thread's work
        self._model, self._block_size = model, block_size
        self._hash = get_hash_fn_by_name("sha256")
        init_none_hash(self._hash)
        return {"version": f"vllm {vllm.__version__}", "detail": "scheduler, not asynchronous, sha256 block hashes"}

    def steps(self, prompts: list[list[int]], num_steps: int) -> Answer:
        """Seconds of schedule + update in steps in which every prompt decodes."""
        longest = max(map(len, prompts)) + 2 * num_steps
        scheduler = self._new(len(prompts), len(prompts) * -(-longest // self._block_size) + 2)
        for i, ids in enumerate(prompts):
            scheduler.add_request(self._request(str(i), ids, 2 * num_steps))
        times: list[float] = []
        while len(times) < num_steps:
            start = perf_counter()
            output = scheduler.schedule()
            planned = perf_counter()
            ids = list(output.num_scheduled_tokens)
            result = ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={name: i for i, name in enumerate(ids)},
                sampled_token_ids=[[7] for _ in ids],
            )
            answered = perf_counter()
            scheduler.update_from_output(output, result)
            if output.total_num_scheduled_tokens == len(prompts):
                times.append(planned - start + perf_counter() - answered)
        return {"seconds": times}

    def lookup(self, prompt: list[int], repeats: int) -> Answer:
        """Seconds to find a cached prompt whose hashes are computed, and to compute them."""
        scheduler = self._new(1, 2 * len(prompt) // self._block_size + 8)
        scheduler.add_request(self._request("cached", [*prompt, 1], 2))
        scheduled = 0
        while scheduled < len(prompt):
            scheduled += scheduler.schedule().total_num_scheduled_tokens
        start = perf_counter()
        again = self._request("again", [*prompt, 2], 2)
        hashed = perf_counter() - start
        times = []
        for _ in range(repeats):
            start = perf_counter()
            found = scheduler.kv_cache_manager.get_computed_blocks(again)[1]
            times.append(perf_counter() - start)
            if found != len(prompt):
                raise ValueError(f"{found} tokens found, {len(prompt)} are cached")
        return {"lookup_s": median(times), "hash_s": hashed}

    def _new(self, max_seqs: int, num_blocks: int) -> Scheduler:
        config = EngineArgs(
            model=self._model,
            dtype="float32",
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=max_seqs,
            max_num_batched_tokens=max(MAX_MODEL_LEN + 1, max_seqs),
            block_size=self._block_size,
            enable_prefix_caching=True,
            async_scheduling=False,
        ).create_engine_config()
        config.cache_config.num_gpu_blocks = num_blocks
        spec = FullAttentionSpec(block_size=self._block_size, num_kv_heads=3, head_size=64, dtype=torch.float32)
        groups = [KVCacheGroupSpec(["layer"], spec)]
        return Scheduler(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups),
            structured_output_manager=StructuredOutputManager(config),
            block_size=self._block_size,
        )

    def _request(self, name: str, ids: list[int], max_tokens: int) -> Request:
        params = vllm.SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        hasher = get_request_block_hasher(self._block_size, self._hash)
        return Request(name, ids, params, None, block_hasher=hasher)
