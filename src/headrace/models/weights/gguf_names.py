"""GGUF tensor names to Hugging Face names. Pure text."""

from __future__ import annotations

import re
from collections.abc import Mapping

from headrace.contract.errors import ModelError

TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
BLOCK = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
}
# ``ffn_norm`` is the norm in front of the MLP. Where the branch outputs are normed as well, Hugging Face
# gives the name ``post_attention_layernorm`` to another tensor: this part depends on the family.
PRE_NORMS = {"ffn_norm": "post_attention_layernorm"}
SANDWICH_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_BLOCK_NAME = re.compile(r"blk\.(0|[1-9]\d{0,4})\.(\w+)\.(weight|bias)")


def hf_name(source: str, name: str, norm_names: Mapping[str, str]) -> str:
    """The Hugging Face name of a GGUF tensor. Errors: ModelError for a name that no supported family has."""
    if name in TOP:
        return TOP[name]
    match = _BLOCK_NAME.fullmatch(name)
    if match:
        layer, part, kind = match.groups()
        inner = BLOCK.get(part) or norm_names.get(part)
        if inner:
            return f"model.layers.{layer}.{inner}.{kind}"
    raise ModelError(f"{source}: {name}", "is a tensor that this architecture has no place for")
