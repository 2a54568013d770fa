"""A byte tokenizer with DeepSeek-V4.1's control tokens, and a pretended model that answers with them."""

from __future__ import annotations

import json
from pathlib import Path

import cli_models
from served import Script
from tokenizers import AddedToken

from headrace.api.text.tokenizer import Tokenizer, load_tokenizer

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT, SYSTEM = "<｜User｜>", "<｜Assistant｜>", "<｜System｜>"
THINK, END_THINK, DSML = "<think>", "</think>", "｜DSML｜"
CONTROL = (BOS, EOS, USER, ASSISTANT, SYSTEM, THINK, END_THINK, DSML)


def recipe_tokenizer(folder: Path) -> Tokenizer:
    backend = cli_models.byte_tokenizer()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    known = {"bos_token": BOS, "eos_token": EOS, "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(known))
    return load_tokenizer(folder)


def called(city: str, name: str = "weather", plain: str = "true") -> str:
    """A block of one call, as the family writes it."""
    return (
        f'<{DSML} calls>\n<{DSML} invoke name="{name}">\n<{DSML} parameter name="city" string="{plain}">{city}'
        f"</{DSML} parameter>\n</{DSML} invoke>\n</{DSML} calls>"
    )


class MarkedScript(Script):
    """Control tokens in the answers are tokens; ``\\0`` before one makes it ordinary text."""

    def ids(self, raw: bytes) -> list[int]:
        ids: list[int] = []
        for number, part in enumerate(raw.decode().split("\0")):
            if number:  # up to the end of the spelling, read as text
                spelling = next(token for token in CONTROL if part.startswith(token))
                ids += self.tokenizer.encode(spelling, add_special=False, parse_special=False)
                part = part.removeprefix(spelling)
            ids += self.tokenizer.encode(part, add_special=False)
        return ids
