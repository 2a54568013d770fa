"""Where an engine's constraints compile. Composition only; compiles nothing itself."""

from __future__ import annotations

from headrace.config import EngineConfig
from headrace.grammar.backend import Vocabulary
from headrace.grammar.compiler import GrammarPool

from .text.tokenizer import Tokenizer


def open_grammars(config: EngineConfig, tokenizer: Tokenizer | None, vocab_size: int) -> GrammarPool | None:
    """Where constraints compile; None without text to constrain. Costs nothing until the first one comes."""
    if tokenizer is None:
        return None
    limits = config.grammar
    return GrammarPool(
        lambda: vocabulary(tokenizer, vocab_size),
        threads=limits.grammar_threads,
        timeout_s=limits.grammar_timeout_s,
        cache_bytes=limits.grammar_cache,
    )


def vocabulary(tokenizer: Tokenizer, vocab_size: int) -> Vocabulary:
    """Bytes of every id of the model; none for control tokens, which no text may contain."""
    ids = range(vocab_size)
    return Vocabulary([tokenizer.visible_bytes(i, skip_special=True) for i in ids], tokenizer.eos_ids)
