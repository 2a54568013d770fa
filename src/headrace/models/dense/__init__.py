"""The dense decoder family (Llama, Qwen2, Qwen3, Gemma 3 text): one program, the differences are data.

Four roles: ``families``, ``config*`` and ``assembly`` derive, validate and wire; ``params`` only holds
tensors; ``forward`` only calls ops; ``tensor_ops`` are pure functions.
"""
