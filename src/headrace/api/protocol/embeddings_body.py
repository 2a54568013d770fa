"""``/v1/embeddings``: the request and the answer."""

from __future__ import annotations

import base64
import struct
from typing import Any, Literal

import msgspec

from headrace.contract.errors import InvalidRequest

MAX_INPUTS = 2048


class EmbeddingsBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``input``: a text, a list of texts, ids, or a list of lists of ids. ``user`` is without effect."""

    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None

    def inputs(self, size: int) -> list[str | list[int]]:
        """In order. ``size``: of the vectors, which ``dimensions`` may only repeat."""
        if self.dimensions not in (None, size):
            raise InvalidRequest("dimensions", f"this model's vectors have {size}")
        if isinstance(self.input, str):
            return [self.input]
        if not self.input:
            raise InvalidRequest("input", "must hold at least one text")
        if len(self.input) > MAX_INPUTS and not isinstance(self.input[0], int):
            raise InvalidRequest("input", f"at most {MAX_INPUTS} texts at once, got {len(self.input)}")
        if all(isinstance(item, int) for item in self.input):
            return [[item for item in self.input if isinstance(item, int)]]
        mixed = next((i for i, item in enumerate(self.input) if isinstance(item, int)), None)
        if mixed is not None:
            raise InvalidRequest(f"input[{mixed}]", "is a token id among texts; put token ids into a list of their own")
        return [item for item in self.input if not isinstance(item, int)]


def embeddings_reply(body: EmbeddingsBody, model: str, vectors: list[list[float]], tokens: int) -> dict[str, Any]:
    """Base64 holds little-endian float32."""
    coded: list[Any] = list(vectors)
    if body.encoding_format == "base64":
        coded = [base64.b64encode(struct.pack(f"<{len(v)}f", *v)).decode() for v in vectors]
    data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(coded)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}
