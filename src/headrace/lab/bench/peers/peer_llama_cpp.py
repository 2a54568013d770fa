"""llama.cpp through llama-cpp-python's low-level interface: real batches of many sequences, and its quantiser.

Each workload gets a context of the shape that suits it: one stream; one stream per request; or, for requests with a
common beginning, shared cells into which the beginning is computed once.
"""

import ctypes
from time import perf_counter
from typing import Any

import llama_cpp as api
import numpy as np

BATCH_TOKENS = 2048
QUIET = api.llama_log_callback(lambda *_: None)  # a module's name, because the library keeps only its address

Answer = dict[str, Any]
Row = tuple[int, int, int, bool]  # sequence, position, token, wants logits


class Peer:
    def load(self, model: str, threads: int, **_: Any) -> Answer:
        api.llama_backend_init()
        api.llama_log_set(QUIET, None)
        self._model = api.llama_model_load_from_file(model.encode(), api.llama_model_default_params())
        if not self._model:
            raise ValueError(f"{model} cannot be loaded")
        self._threads = threads
        self._shape: tuple[int, int, bool] | None = None
        self._context: Any = None
        self._memory: Any = None
        self._vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        self._batch = api.llama_batch_init(BATCH_TOKENS, 0, 1)
        system = api.llama_print_system_info().decode()
        return {"version": f"llama-cpp-python {api.__version__}", "detail": system}

    def generate(self, prompts: list[list[int]], max_tokens: int) -> Answer:
        first, total, _ = self._run(prompts, max_tokens)
        return {"first_s": first, "total_s": total, "num_output": len(prompts) * max_tokens}

    def steps(self, prompts: list[list[int]], num_steps: int) -> Answer:
        """Seconds of each decode step with one row per prompt."""
        return {"seconds": self._run(prompts, num_steps + 1)[2]}

    def score(self, windows: list[list[int]]) -> Answer:
        """Sum of log-likelihoods of each window's tokens but the first."""
        self._open(1, max(map(len, windows)), False)
        return {"sums": [self._score(ids) for ids in windows]}

    def quantise(self, source: str, target: str, kind: str) -> Answer:
        params = api.llama_model_quantize_default_params()
        params.ftype = getattr(api, f"LLAMA_FTYPE_MOSTLY_{kind}")
        params.allow_requantize = True
        if api.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)):
            raise ValueError(f"{source} cannot be made {kind}")
        return {}

    def _open(self, sequences: int, length: int, shared: bool) -> None:
        """A clean context for ``sequences`` of ``length`` tokens; kept while the shape stays the same."""
        shape = (sequences, length, shared)
        if shape != self._shape:
            if self._context:
                api.llama_free(self._context)
            params = api.llama_context_default_params()
            cells = -(-length // 256) * 256
            params.n_ctx = cells if shared else cells * sequences
            params.n_batch, params.n_ubatch = BATCH_TOKENS, 512
            params.n_seq_max, params.kv_unified = sequences, shared
            params.n_threads = params.n_threads_batch = self._threads
            self._context = api.llama_init_from_model(self._model, params)
            if not self._context:
                raise ValueError(f"no context for {sequences} x {length} tokens")
            self._shape = shape
        self._memory = api.llama_get_memory(self._context)
        api.llama_memory_clear(self._memory, True)

    def _run(self, prompts: list[list[int]], max_tokens: int) -> tuple[float, float, list[float]]:
        """(seconds to the first token, seconds in all, seconds of each later step), greedy."""
        shared = common_length(prompts)
        lengths = [len(ids) for ids in prompts]
        total = shared + sum(lengths) - shared * len(prompts) + len(prompts) * max_tokens
        self._open(len(prompts), total if shared else max(lengths) + max_tokens, shared > 0)
        start = perf_counter()
        if shared:
            self._decode([(0, i, token, False) for i, token in enumerate(prompts[0][:shared])])
            for sequence in range(1, len(prompts)):
                api.llama_memory_seq_cp(self._memory, 0, sequence, 0, shared)
        rows = [(s, i, ids[i], i == len(ids) - 1) for s, ids in enumerate(prompts) for i in range(shared, len(ids))]
        last = self._decode(rows)
        first, seconds = perf_counter() - start, []
        for step in range(max_tokens - 1):
            before = perf_counter()
            last = self._decode([(s, lengths[s] + step, last[s], True) for s in range(len(prompts))])
            seconds.append(perf_counter() - before)
        return first, perf_counter() - start, seconds

    def _decode(self, rows: list[Row]) -> list[int]:
        """Computes the rows; the best token of each that wants them."""
        best = []
        for at in range(0, len(rows), BATCH_TOKENS):
            part = rows[at : at + BATCH_TOKENS]
            self._fill(part)
            if api.llama_decode(self._context, self._batch):
                raise ValueError("llama_decode failed")
            wanted = [i for i, row in enumerate(part) if row[3]]
            best += [int(self._logits(i).argmax()) for i in wanted]
        return best

    def _fill(self, rows: list[Row]) -> None:
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (sequence, position, token, wants) in enumerate(rows):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.logits[i] = 1, wants
            batch.seq_id[i][0] = sequence

    def _logits(self, row: int) -> Any:
        return np.ctypeslib.as_array(api.llama_get_logits_ith(self._context, row), (self._vocab,))

    def _score(self, ids: list[int]) -> float:
        api.llama_memory_clear(self._memory, True)
        self._fill([(0, i, token, True) for i, token in enumerate(ids)])
        if len(ids) > BATCH_TOKENS or api.llama_decode(self._context, self._batch):
            raise ValueError("llama_decode failed")
        return sum(log_likelihood(self._logits(i), ids[i + 1]) for i in range(len(ids) - 1))


def common_length(prompts: list[list[int]]) -> int:
    """Tokens that all prompts begin with, when there are several; each keeps one of its own."""
    if len(prompts) < 2:
        return 0
    shortest = min(map(len, prompts)) - 1
    return next((i for i in range(shortest) if len({ids[i] for ids in prompts}) > 1), shortest)


def log_likelihood(logits: Any, token: int) -> float:
    """Natural logarithm of the softmax, in float64."""
    wide = logits.astype(np.float64)
    top = wide.max()
    return float(wide[token] - top - np.log(np.exp(wide - top).sum()))
