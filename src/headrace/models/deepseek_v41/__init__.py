"""The DeepSeek-V4.1 family: one trunk of parallel streams, shared compressed KV, a sparse indexer, Engram, experts.

Four roles: ``config``, ``topology``, ``tensor_table``, ``records``, ``reading`` and ``assembly`` derive, validate and
wire; ``params`` only holds tensors; ``forward``, ``step``, ``layer``, ``attention``, ``compression``, ``indexing``,
``experts``, ``engram``, ``vision`` and ``drafting`` run; ``quantise``, ``selection``, ``engram_hash``, ``mixing`` and
``tensor_ops`` are pure functions.
"""
