"""What the small member reads: four public-domain texts, a vocabulary made from them, and sequences drawn from them.

The end of every text is held out and never trained on. Pinned by checksum (``lab.bench.corpus``); nothing of the texts
is part of this project.
"""

from __future__ import annotations

from dataclasses import dataclass

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers
from torch import Tensor

from headrace.lab.bench.corpus import ALICE, Corpus, corpus_text

HELD_OUT = 0.05  # of each text, its end
VOCAB = 2048
BEGIN, END, PAD = 0, 1, 2
CONTROL = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
IMAGE, NOISE = "<｜deepseek_image｜>", "<｜place▁holder▁no▁0｜>"
IMAGE_ID, NOISE_ID = VOCAB - 2, VOCAB - 1


def _member(name: str, sha256: str) -> Corpus:
    folder = ALICE.member.rpartition("/")[0]
    return Corpus(ALICE.package, ALICE.archive, ALICE.archive_sha256, f"{folder}/{name}", sha256)


# Lewis Carroll, William Shakespeare, John Milton, and proceedings published by the Library of Congress.
TEXTS = (
    ALICE,
    _member("asyoulik.txt", "eaa3526fe53859f34ecdf255712f9ecf0b2c903451d4755b2edaa2e2599cb0fc"),
    _member("plrabn12.txt", "07e2e0b461af78c7c647cb53dab39de560198e16f799b4516eccf0fbd69f764c"),
    _member("lcet10.txt", "5314ba1dbb03f471df88bec6cd120a938ef60d0fd3511c5c1dce61bf7463245f"),
)


@dataclass(frozen=True, slots=True)
class Texts:
    """Token ids (int64), one tensor per text."""

    tokenizer: tokenizers.Tokenizer
    training: tuple[Tensor, ...]
    held_out: tuple[Tensor, ...]


def read_texts(vocab: int = VOCAB) -> Texts:
    """Errors: PullError when a text cannot be had."""
    halves = [_split(corpus_text(corpus)) for corpus in TEXTS]
    tokenizer = make_tokenizer([before for before, _ in halves], vocab)

    def encoded(text: str) -> Tensor:
        return torch.tensor(tokenizer.encode(text).ids)

    return Texts(tokenizer, tuple(encoded(a) for a, _ in halves), tuple(encoded(b) for _, b in halves))


def _split(text: str) -> tuple[str, str]:
    """At a line's end."""
    at = text.index("\n", int(len(text) * (1 - HELD_OUT))) + 1
    return text[:at], text[at:]


def make_tokenizer(texts: list[str], vocab: int) -> tokenizers.Tokenizer:
    """Byte-level BPE. Ids 0 to 2 begin, end and pad; the last two stand for a picture and for what is drafted."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - 2, special_tokens=list(CONTROL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([IMAGE, NOISE])
    return tokenizer


def draw(texts: tuple[Tensor, ...], sequences: int, length: int, generator: torch.Generator) -> Tensor:
    """(sequences, length + 1) ids: a begin, then consecutive tokens from anywhere, more often of longer texts."""
    room = torch.tensor([float(max(len(t) - length, 1)) for t in texts])
    numbers = torch.multinomial(room, sequences, replacement=True, generator=generator).tolist()
    rows = []
    for number in numbers:
        at = int(torch.randint(int(room[number]), (1,), generator=generator))
        rows.append(torch.cat((torch.tensor([BEGIN]), texts[number][at : at + length])))
    return torch.stack(rows)


def in_order(texts: tuple[Tensor, ...], length: int) -> Tensor:
    """(n, length + 1): every text cut into consecutive pieces, each behind a begin; what is left over is dropped."""
    rows = []
    for text in texts:
        whole = len(text) // length * length
        rows += list(text[:whole].view(-1, length))
    return torch.nn.functional.pad(torch.stack(rows), (1, 0), value=BEGIN)
