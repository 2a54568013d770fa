"""Where an engine's constraints compile. Composition only; compiles nothing itself."""

from __future__ import annotations

from headrace.config import EngineConfig
from headrace.grammar.backend import NO_TEXT, Vocabulary
from headrace.grammar.compiler import GrammarPool

from .text.answer_forms import Mark
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
    """Bytes of every id of the model; none for control tokens, which no text may contain. But those that are marks of
    an answer get some that no text can have: the compiler lets a structural tag name tokens with bytes only."""
    tokens = [tokenizer.visible_bytes(i, skip_special=True) for i in range(vocab_size)]
    for mark in Mark:
        index = tokenizer.added_id(mark.value)
        if index is not None and index < vocab_size and not tokens[index]:
            tokens[index] = NO_TEXT + mark.value.encode()
    return Vocabulary(tokens, tokenizer.eos_ids)
