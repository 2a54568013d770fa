"""The DeepSeek-V4.1 family: one trunk of parallel streams, shared compressed KV, a sparse indexer, Engram, experts.

Four roles: ``config``, ``topology``, ``tensor_table``, ``layout``, ``reading`` and ``assembly`` derive, validate and
wire; ``params`` only holds tensors; ``forward``, ``layer``, ``attention``, ``compression``, ``selection``, ``experts``,
``engram``, ``vision`` and ``drafting`` run; ``quantise``, ``engram_hash``, ``mixing`` and ``tensor_ops`` are pure
functions.
"""
