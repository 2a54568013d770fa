"""A vocabulary whose marks are tokens, and a pretended model on it whose words a real grammar has to allow."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cli_models
from served import Script, ScriptedWorker, SpyClient
from tokenizers import AddedToken

from headrace._core import Scheduler
from headrace.api.async_llm import AsyncLLM
from headrace.api.grammar_launch import vocabulary
from headrace.api.text.answer_forms import Mark
from headrace.api.text.tokenizer import Tokenizer, load_tokenizer
from headrace.engine.engine import Engine
from headrace.grammar.compiler import GrammarPool
from headrace.grammar.matching import SequenceMatch

MARKS = (Mark.CALL, Mark.END_CALL, Mark.THINK, Mark.END_THINK)
TEMPLATE = (
    "{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}{{ tools }}<|answer|>"
    "{% if thoughtful %}<think>{% endif %}{# <tool_call> and </think> #}"
)
TOKEN = re.compile(rb"\xfe([^\xff]+)\xff")


def token(spelling: str) -> bytes:
    """In a script: the token, not its letters."""
    return b"\xfe" + spelling.encode() + b"\xff"


def marked_tokenizer(folder: Path, *, special: bool) -> Tokenizer:
    """One id per byte, control tokens and the marks; ``special``: these are control tokens, too."""
    return tokenizer_with(folder, [mark.value for mark in MARKS], special=special, chat_template=TEMPLATE)


def tokenizer_with(folder: Path, words: Sequence[str], *, special: bool, **settings: str) -> Tokenizer:
    """One id per byte, control tokens and one for each of the words."""
    backend = cli_models.byte_tokenizer()
    added = [AddedToken(word, special=special, normalized=False) for word in words]
    backend.add_special_tokens(added) if special else backend.add_tokens(added)
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    known = {"eos_token": "<|end|>", "chat_template": cli_models.TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(known | settings))
    return load_tokenizer(folder)


@dataclass
class MarkedScript(Script):
    """Answers hold ``token(...)`` among their bytes."""

    def ids(self, raw: bytes) -> list[int]:
        ids, end = list[int](), 0
        for found in TOKEN.finditer(raw):
            index = self.tokenizer.added_id(found[1].decode())
            assert index is not None
            ids += [*super().ids(raw[end : found.start()]), index]
            end = found.end()
        return ids + super().ids(raw[end:])


class GuardedWorker(ScriptedWorker):
    """A word that the request's grammar does not allow fails its step."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self._matches: dict[int, tuple[SequenceMatch, int]] = {}

    def launch_forward(self, plan: Any, starts: Any) -> Any:
        guarded = [start for start in starts if start.grammar is not None]
        self._matches.update({start.seq_id: (SequenceMatch(start.grammar), start.prompt_len) for start in guarded})
        return super().launch_forward(plan, starts)

    def launch_sample(self, handle: Any) -> None:
        super().launch_sample(handle)
        for seq_id, samples in zip(handle.plan.seq_ids.tolist(), handle.plan.samples.tolist()):
            if samples and seq_id in self._matches:
                match, prompt_len = self._matches[seq_id]
                match.follow(self.rows[seq_id][prompt_len:])


def guarded_llm(script: Script) -> AsyncLLM:
    """An engine that follows the script as far as real grammars let it."""
    size = script.tokenizer.vocab_size
    grammars = GrammarPool(lambda: vocabulary(script.tokenizer, size))
    core = Scheduler(num_blocks=4000, block_size=16, token_budget=512, max_model_len=4096)
    engine = Engine(core, GuardedWorker(script), grammars=grammars)
    return AsyncLLM.over(SpyClient(engine), script.tokenizer, {"vocab_size": size, "max_model_len": 4096})
