"""
CPU kernels: arithmetic on float32 arrays, chosen per processor at run time.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


def isa() -> str:
    """Name of the instruction set in use."""

def available_isas() -> list[str]:
    """Instruction sets this processor runs, best first."""

def set_isa(name: str) -> None:
    """
    Use this instruction set from now on, process-wide. ValueError when it is not available.
    """

def num_threads() -> int:
    """Threads that share a kernel's work, the caller included."""

def set_num_threads(n: int) -> None:
    """
    Resize the thread pool, process-wide; none of its threads is bound any more. ValueError unless 1 <= n <= 1024.
    """

def bind_threads(processors: Sequence[int]) -> bool:
    """
    Thread i runs on processors[i] alone, the caller of a kernel being thread 0; empty: no thread is bound. False when the system refused. ValueError unless there is one for each thread, or none.
    """

def bind_this_thread(processor: int) -> bool:
    """
    Bind the calling thread to one processor. False when the system refuses.
    """

def release_this_thread() -> bool:
    """
    Give the calling thread every processor the process had at its start. False when the system refuses.
    """

def prefer_nodes(nodes: Sequence[int]) -> bool:
    """
    New pages of the calling thread come from these memory nodes, in turns when several; empty: the default. False when the system refuses.
    """

def num_barriers() -> int:
    """Jobs that threads have shared so far; each ends in a barrier."""

class Weight:
    """
    A weight matrix (n, k) repacked for the kernels. Made by appending rows, each lot in the storage it has; n is their total.
    """

    def __init__(self, k: int) -> None: ...

    def append_floats(self, rows: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None:
        """Rows (m, k) float32."""

    def append_bfloat16(self, rows: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None:
        """Rows (m, k), bfloat16 as uint16."""

    def append_blocks(self, kind: str, rows: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None:
        """
        Rows (m, bytes per row) of blocks as GGUF stores them; kind is the format's name there.
        """

    @property
    def n(self) -> int: ...

    @property
    def k(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def quantised(self) -> bool:
        """Whether any rows are blocks: then linear rounds x to int8."""

def linear(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], weight: Weight, bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """out (T, n) = x (T, k) @ weight.T + bias (n) or None."""

def norm_linear(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], residual: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None, norm: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], eps: float, weight: Weight, bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, sum: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')] | None, out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """linear of the norm of x, or of x + residual, which then goes to sum."""

def gated_linear(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], gelu: bool, weight: Weight, out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """linear of silu_mul or gelu_tanh_mul of x (T, 2k)."""

def norm_argmax(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], norm: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], eps: float, weight: Weight, out: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    out (T) int32 = lowest n of the maxima of linear of the norm of x; -1 without a finite maximum.
    """

def embedding(ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], weight: Weight, out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """out (T, k) = rows of the weight by id; ids (T) int32 in [0, n)."""

def rms_norm(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], weight: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], eps: float, out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """out = x / sqrt(mean(x^2) + eps) * weight, row by row."""

def add_rms_norm(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], residual: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], weight: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], eps: float, out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], sum: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """sum = x + residual; out = its norm."""

def rope(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], table: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], interleaved: bool, out: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu')]) -> None:
    """out (T, heads, D) = x rotated by its positions."""

def silu_mul(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """out (T, F) = silu(x[:, :F]) * x[:, F:]."""

def gelu_tanh_mul(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """out (T, F) = gelu_tanh(x[:, :F]) * x[:, F:]."""

def write_kv(k: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], v: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], k_cache: Annotated[NDArray, dict(shape=(None, None, None, None), device='cpu')], v_cache: Annotated[NDArray, dict(shape=(None, None, None, None), device='cpu')], slots: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
    """
    Copies token t's keys and values to slots[t] of the caches; -1 writes nothing.
    """

def qkv_to_cache(qkv: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], q_norm: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, k_norm: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, eps: float, positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], table: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], interleaved: bool, k_cache: Annotated[NDArray, dict(shape=(None, None, None, None), device='cpu')], v_cache: Annotated[NDArray, dict(shape=(None, None, None, None), device='cpu')], slots: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu')]) -> None:
    """
    Head norms, rotation and cache writes of a fused projection; q goes to out (T, Hq, D).
    """

def gather_rows(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """out (R, width) = x[rows]."""

def axpy(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], factor: float, other: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None, out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """out = x * factor, plus other where given."""

def paged_attention(q: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], k_cache: Annotated[NDArray, dict(shape=(None, None, None, None), device='cpu')], v_cache: Annotated[NDArray, dict(shape=(None, None, None, None), device='cpu')], block_table: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], query_start_loc: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], seq_lens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], scale: float, window: int, out: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu')]) -> None:
    """
    Attention of packed rows q (T, Hq, D) to the paged cache; rows beyond the last slice become 0.
    """

def latent_attention(q: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], query_start_loc: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], seq_lens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], floors: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], reach: int, blocks: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], window_table: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], window: tuple[int, int, int], shared_table: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], shared: tuple[int, int, int], narrow: bool, chosen: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None, sink: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu')]) -> None:
    """
    Attention of packed rows q (T, H, D) to a window and to chosen rows of a shared cache, both records.
    """

def choose_entries(q: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], weights: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], query_start_loc: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], visible: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], blocks: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], table: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], codes: tuple[int, int, int], scales: tuple[int, int, int], rounded: bool, block_size: int, among: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None, entries: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')], chosen_blocks: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """
    The best entries of each row by its index scores, and the best blocks of them.
    """

def apply_rules(logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], bias_offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], bias_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], bias_values: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], allow_offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], allow_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], prompt_offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], prompt_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], output_offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], output_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], repetition: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], presence: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], frequency: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], ban_offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], ban_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
    """Changes logits (R, V) in place: allow, bias, penalties, ban."""

def sample(logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], temperature: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], top_k: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], top_p: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], min_p: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], seed: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], position: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """out (R) = one drawn id per row of logits (R, V), or -1."""

def gather_logprobs(logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], chosen: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], rank: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], top_ids: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')], top_values: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """Log-softmax of logits (R, V) at ids (R) and of the best (R, n)."""

class Program:
    """Kernel calls recorded once and replayed without Python."""

    def __init__(self, tokens: int, logits: int) -> None:
        """Capacities; they must differ."""

    def input(self, index: int, array: Annotated[NDArray[numpy.int32], dict(order='C', device='cpu', writable=False)]) -> None:
        """Declares the array to be step input `index`."""

    def start(self) -> None:
        """
        From now on this thread's kernel calls are recorded here instead of run.
        """

    @staticmethod
    def stop() -> None:
        """Ends the recording of this thread."""

    def run(self, tokens: int, logits: int, slices: int, max_blocks: int, inputs: Sequence[Annotated[NDArray[numpy.int32], dict(order='C', device='cpu', writable=False)]]) -> None:
        """Replays the calls over a step of these sizes."""

    def names(self) -> list[str]:
        """What each recorded call is."""

    def timed_run(self, tokens: int, logits: int, slices: int, max_blocks: int, inputs: Sequence[Annotated[NDArray[numpy.int32], dict(order='C', device='cpu', writable=False)]]) -> list[float]:
        """
        Replays, and returns the seconds of each call; with one thread, of processor time.
        """

    def __len__(self) -> int: ...

def read_all(words: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int:
    """
    Reads every word once, shared among the threads; a checksum. For measuring bandwidth.
    """

def multiply_floats(rounds: int) -> tuple[float, float, str]:
    """
    (operations, checksum, method) of a float32 multiply-add loop. For measuring the peak.
    """

def multiply_bytes(rounds: int) -> tuple[float, float, str]:
    """
    (operations, checksum, method) of a loop of byte products. For measuring the peak.
    """
