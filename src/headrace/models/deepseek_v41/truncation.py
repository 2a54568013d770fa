"""Skipping the decoder half of long prompts: all that later tokens can see of it are the compressed rows of its first
layer, and windows near the end. Decides which rows and keys count; computes nothing.

``mask`` computes every row but hides window keys before the kept ones: it says what ``compact``, which drops those rows
from the first decoder layer on, must give on the rows it keeps. Both approximate ``off``, and are exact for a prompt's
last row once ``exact_keep`` rows are kept: each layer reads one window further back.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.contract.errors import ConfigError

from .config import V41Config
from .records import MOST_DRAFTS

OFF, MASK, COMPACT = "off", "mask", "compact"
MODES = (OFF, MASK, COMPACT)
BACKTRACKING = MOST_DRAFTS + 1  # positions that decoding may go back by, and then see a whole window from


@dataclass(frozen=True, slots=True)
class Truncation:
    """``keep``: the last tokens of what is known of a sequence that the decoder half computes."""

    mode: str = OFF
    keep: int = 0

    def floor(self, known: int) -> int:
        """First position whose window keys decoder layers may see, of a sequence of ``known`` tokens."""
        return 0 if self.mode == OFF else max(0, known - self.keep)

    def clip(self, known: int, first: int, count: int) -> int:
        """Rows at the start of a slice (positions from ``first`` on) that decoder layers drop; never the last one."""
        return 0 if self.mode != COMPACT else min(max(known - self.keep - first, 0), count - 1)


def exact_keep(config: V41Config) -> int:
    """Rows that leave the last one exact: a window, and one window less a position for every further layer."""
    layers = config.num_layers - config.topology.first_decoder
    return config.window + (layers - 1) * (config.window - 1)


def check_truncation(truncation: Truncation, config: V41Config) -> None:
    """Errors: ConfigError for a mode or ``keep`` that cannot work, or a topology that has no half to skip."""
    if truncation.mode not in MODES:
        raise ConfigError("truncation", f"{truncation.mode!r} is unknown; choose one of {', '.join(MODES)}")
    if truncation.mode == OFF:
        return
    least = config.window + BACKTRACKING
    if truncation.keep < least:
        words = f"a window ({config.window}) and what may be taken back ({BACKTRACKING})"
        raise ConfigError("prefill_keep", f"must be at least {least} with this model, {words}; got {truncation.keep}")
    topology, first = config.topology, config.topology.first_decoder
    if first == 0:
        raise ConfigError("compress_ratios", "has no layer before the decoder half: nothing can be skipped")
    if truncation.mode == COMPACT:
        late = [n for n in range(first + 1, config.num_layers) if topology.owns_kv(n) or topology.owns_index_keys(n)]
        if late:
            raise ConfigError("kv_source_layer_ids", f"layer {late[0]} would compress only the kept rows")
        if config.engram is not None and config.engram.layers[-1] >= first:
            raise ConfigError("engram_layer_ids", f"layer {config.engram.layers[-1]} lies in the half that is skipped")
        if config.draft.taps[0] < first <= config.draft.taps[-1]:
            raise ConfigError("dspark_target_layer_ids", f"taps on both sides of layer {first}")
