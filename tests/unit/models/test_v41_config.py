"""V4.1 configurations: what is derived from them, and one refusal per rule, each naming its key."""

from __future__ import annotations

from typing import Any

import pytest
from v41_config import ABSENT, CONFIG, TEXT, changed, text

from headrace.contract.errors import ConfigError
from headrace.models.deepseek_v41.config import derive_v41


def test_roles_of_the_layers() -> None:
    topology = derive_v41(CONFIG).topology
    assert topology.first_decoder == 4
    assert topology.kv_sources == (0, 1, 1, 1, 4, 4, 4, 4)
    assert topology.index_sources == (0, 1, 1, 3, 4, 4, 6, 6)
    assert topology.index_key_sources == topology.kv_sources
    assert [n for n in range(8) if topology.owns_kv(n)] == [1, 4]
    assert [n for n in range(8) if topology.owns_index(n)] == [1, 3, 4, 6]
    assert [n for n in range(8) if topology.chooses_among_candidates(n)] == [5, 6, 7]


def test_the_released_topology_is_accepted() -> None:
    released = text(
        num_hidden_layers=40,
        compress_ratios=[0, 0] + [2] * 18 + [1] * 20 + [0] * 3,
        kv_source_layer_ids=[2, 8, 14, 20],
        index_source_layer_ids=[2, 8, 14, 20, 24, 28, 32, 36],
        index_topk=512,
        candidate_source_layer_id=20,
        candidate_topk_blocks=2048,
        engram_layer_ids=[1, 14],
        num_nextn_predict_layers=3,
        dspark_target_layer_ids=[37, 38, 39],
    )
    topology = derive_v41(released).topology
    assert topology.first_decoder == 20
    assert topology.kv_sources[19:22] == (14, 20, 20)
    assert topology.index_sources[23:25] == (20, 24)


@pytest.mark.parametrize("off", [None, -1])
def test_candidate_blocks_can_be_off(off: int | None) -> None:
    assert derive_v41(text(candidate_source_layer_id=off)).topology.candidates is None


@pytest.mark.parametrize("absent", ["rope_scaling", "hc_shifted", "dspark_target_attn_input", "use_fp4_sparse_kv"])
def test_what_may_be_absent(absent: str) -> None:
    assert derive_v41(text(**{absent: ABSENT}))


def test_no_engram_without_layers() -> None:
    assert derive_v41(text(engram_layer_ids=[])).engram is None


RATIOS = TEXT["compress_ratios"]
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "another model type": ("model_type", changed(model_type="deepseek_v3")),
    "another dtype": ("dtype", changed(dtype="float16")),
    "no pad id": ("pad_token_id", changed(pad_token_id=ABSENT)),
    "no bos id": ("bos_token_id", changed(bos_token_id=ABSENT)),
    "no eos id": ("eos_token_id", changed(eos_token_id=ABSENT)),
    "image id 0": ("image_token_id", changed(image_token_id=0)),
    "no quantisation": ("quantization_config", changed(quantization_config=ABSENT)),
    "no text": ("text_config", changed(text_config=ABSENT)),
    "no vision": ("vision_config", changed(vision_config=ABSENT)),
    "quantisation method": ("quant_method", changed(quantization_config__quant_method="awq")),
    "expert storage": ("expert_dtype", changed(quantization_config__expert_dtype="fp8")),
    "static activations": ("activation_scheme", changed(quantization_config__activation_scheme="static")),
    "tiles": ("weight_block_size", changed(quantization_config__weight_block_size=[128, 128])),
    "scales": ("scale_fmt", changed(quantization_config__scale_fmt="float")),
    "wide pictures": ("max_wh_ratio", changed(vision_config__max_wh_ratio=0.5)),
    "no patch size": ("patch_size", changed(vision_config__patch_size=ABSENT)),
    "activation": ("hidden_act", text(hidden_act="gelu")),
    "attention bias": ("attention_bias", text(attention_bias=True)),
    "attention dropout": ("attention_dropout", text(attention_dropout=0.1)),
    "two kv heads": ("num_key_value_heads", text(num_key_value_heads=2)),
    "scoring": ("scoring_func", text(scoring_func="softmax")),
    "expert choice": ("topk_method", text(topk_method="greedy")),
    "weights not normed": ("norm_topk_prob", text(norm_topk_prob=False)),
    "two shared experts": ("n_shared_experts", text(n_shared_experts=2)),
    "tied head": ("tie_word_embeddings", text(tie_word_embeddings=True)),
    "unshifted mixing": ("hc_shifted", text(hc_shifted=False)),
    "another tap": ("dspark_target_attn_input", text(dspark_target_attn_input=False)),
    "compressed KV of some width": ("use_fp4_sparse_kv", text(use_fp4_sparse_kv=4)),
    "one ratio short": ("compress_ratios", text(compress_ratios=RATIOS[:-1])),
    "drafts that compress": ("compress_ratios", text(compress_ratios=[*RATIOS[:-1], 1])),
    "ratio 4": ("compress_ratios", text(compress_ratios=[0, 4, 4, 4, 1, 1, 1, 1, 0, 0])),
    "no decoder half": ("compress_ratios", text(compress_ratios=[0, 2, 2, 2, 2, 2, 2, 2, 0, 0])),
    "window-only after the first source": ("compress_ratios", text(compress_ratios=[0, 2, 0, 2, 1, 1, 1, 1, 0, 0])),
    "compressed before any source": ("compress_ratios", text(compress_ratios=[2, 2, 2, 2, 1, 1, 1, 1, 0, 0])),
    "no sources": ("kv_source_layer_ids", text(kv_source_layer_ids=[])),
    "sources not a list": ("kv_source_layer_ids", text(kv_source_layer_ids=4)),
    "source out of range": ("index_source_layer_ids", text(index_source_layer_ids=[1, 3, 4, 8])),
    "source twice": ("index_source_layer_ids", text(index_source_layer_ids=[1, 3, 3, 4])),
    "sources out of order": ("kv_source_layer_ids", text(kv_source_layer_ids=[4, 1])),
    "no kv source at the decoder": ("kv_source_layer_ids", text(kv_source_layer_ids=[1])),
    "kv source in the middle of the decoder": (
        "kv_source_layer_ids",
        text(kv_source_layer_ids=[1, 5], index_source_layer_ids=[1, 5]),
    ),
    "kv source without index": ("index_source_layer_ids", text(index_source_layer_ids=[1, 3, 6])),
    "index keys without kv": ("index_k_source_layer_ids", text(index_k_source_layer_ids=[1, 3])),
    "index keys without a compressor": ("index_k_source_layer_ids", text(index_k_source_layer_ids=[1, 3, 4])),
    "candidate key missing": ("candidate_source_layer_id", text(candidate_source_layer_id=ABSENT)),
    "candidate source no index source": ("candidate_source_layer_id", text(candidate_source_layer_id=5)),
    "candidate source of another ratio": ("candidate_source_layer_id", text(candidate_source_layer_id=3)),
    "candidate source out of range": ("candidate_source_layer_id", text(candidate_source_layer_id=8)),
    "candidate blocks not by 8": ("candidate_topk_blocks", text(candidate_topk_blocks=12)),
    "no candidate blocks": ("candidate_topk_blocks", text(candidate_topk_blocks=0)),
    "big candidate blocks": ("candidate_block_size", text(candidate_block_size=32)),
    "more entries than candidates": ("index_topk", text(index_topk=1024)),
    "engram without compressed ids": ("engram_compressed_vocab_size", text(engram_compressed_vocab_size=0)),
    "engram out of range": ("engram_layer_ids", text(engram_layer_ids=[1, 8])),
    "unigrams only": ("engram_max_ngram_size", text(engram_max_ngram_size=1)),
    "engram rows not by 32": ("engram_head_dim", text(engram_head_dim=100)),
    "taps out of range": ("dspark_target_layer_ids", text(dspark_target_layer_ids=[6, 7, 8])),
    "more experts than there are": ("num_experts_per_tok", text(num_experts_per_tok=9)),
    "more draft experts than there are": ("dspark_num_experts_per_tok", text(dspark_num_experts_per_tok=5)),
    "heads not in groups": ("num_attention_heads", text(o_groups=3)),
    "odd rotary dims": ("qk_rope_head_dim", text(qk_rope_head_dim=63)),
    "rotary wider than index keys": ("qk_rope_head_dim", text(qk_rope_head_dim=256)),
    "head not by 32": ("head_dim", text(head_dim=500)),
    "another rope scaling": ("rope_scaling", text(rope_scaling={"type": "linear", "factor": 2})),
    "ramp upside down": ("beta_fast", text(rope_scaling={**TEXT["rope_scaling"], "beta_fast": 1})),
    "heads wider than a kernel holds": ("head_dim", text(head_dim=1056)),
    "index heads wider than a kernel holds": ("index_head_dim", text(index_head_dim=288)),
    "an image id that no token has": ("image_token_id", changed(image_token_id=2048)),
    "a noise id that no token has": ("dspark_noise_token_id", text(dspark_noise_token_id=2048)),
    "an engram pad id that no token has": ("engram_pad_token_id", text(engram_pad_token_id=2048)),
    "heads of the tower without pairs for two axes": ("hidden_size", changed(vision_config__hidden_size=68)),
    "pictures without room for a cell": ("max_image_tokens", changed(vision_config__max_image_tokens=3)),
    "a ratio of sides without end": ("max_wh_ratio", changed(vision_config__max_wh_ratio=float("inf"))),
    "a ratio of sides that no float holds": ("max_wh_ratio", changed(vision_config__max_wh_ratio=10**400)),
    "a rotation that does not slow down": ("compress_rope_theta", text(compress_rope_theta=1)),
    "a rotation that becomes faster": ("rope_theta", text(rope_theta=1e-300)),
    "a shrunk context": ("factor", text(rope_scaling={**TEXT["rope_scaling"], "factor": 0.5})),
    "more entries than a step has room for": ("index_topk", text(index_topk=1 << 20, candidate_source_layer_id=None)),
    "more candidates than a step has room for": ("candidate_topk_blocks", text(candidate_topk_blocks=1 << 24)),
    "experts beyond memory in their names alone": ("n_routed_experts", text(n_routed_experts=1 << 16)),
    "primes without end": ("engram_n_heads", text(engram_n_heads=1 << 10, engram_max_ngram_size=16)),
    "pictures that square to terabytes": ("max_image_tokens", changed(vision_config__max_image_tokens=1 << 20)),
    "patches larger than pictures": ("patch_size", changed(vision_config__patch_size=1 << 10)),
    "a window of one": ("sliding_window", text(sliding_window=1)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    key, config = REFUSED[name]
    with pytest.raises(ConfigError, match=key):
        derive_v41(config)
