"""Texts to the ids that an encoder reads: its marks around them, never cut and never padded.

A text that spells a mark (``[SEP]``) is text: marks come from the tokenizer's own template only.
"""

from __future__ import annotations

from pathlib import Path

import tokenizers

from headrace.contract.errors import ModelError
from headrace.contract.files import read_small


class EncoderTokenizer:
    """From the ``tokenizer.json`` in ``folder``. Raises ModelError naming the file."""

    def __init__(self, folder: Path) -> None:
        file = folder / "tokenizer.json"
        try:
            self._backend = tokenizers.Tokenizer.from_buffer(read_small(file))
        except OSError as error:
            raise ModelError(str(file), f"cannot be read: {error.strerror}") from error
        except Exception as error:  # the library raises nothing narrower
            raise ModelError(str(file), f"is no tokenizer: {error}") from error
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = True
        self.vocab_size: int = self._backend.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Lone surrogates become U+FFFD."""
        well_formed = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        ids: list[int] = self._backend.encode_batch([well_formed])[0].ids  # ``encode`` would not let others run
        return ids
