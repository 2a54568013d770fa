"""What draft layers see of past tokens: records made from the backbone's features, one per token and draft layer.

They depend on their own token's features only, so they may be made with the step that makes these, or later.
"""

from __future__ import annotations

from torch import Tensor

from .attention import window_record
from .params import DraftParams
from .step import Program


def context_records(program: Program, draft: DraftParams, features: Tensor, positions: Tensor) -> list[Tensor]:
    """Window records (T, bytes) of each draft layer, from features (T, taps * hidden) at ``positions`` (T,)."""
    hidden = program.arithmetic.coded_linear(features, draft.main_project)
    hidden = program.arithmetic.norm(hidden, draft.main_norm, program.config.norm_eps)
    coded = program.arithmetic.coded(hidden)
    return [window_record(program, layer, coded, positions) for layer in draft.layers]
