"""What a V4.1 forward pass costs in floating-point operations, counted from the configuration. Measures nothing.

Counted are matrix products and attention, as is usual: a token's experts are those it chose and the shared one. Norms,
activations, the streams' collapse and write-back, Engram's gates, drafting layers and the vision tower are left out.
With ``prefill_keep`` some rows skip the decoder half: the count is an upper bound there.
"""

from __future__ import annotations

from headrace.contract.stats import BoundedPairs, StepCost

from .config import V41Config


def step_cost(config: V41Config) -> StepCost:
    """A multiply-add is two. Attention is over a window and over chosen entries, both bounded per token; only those
    index layers that choose among all entries read more the longer a context is."""
    token = sum(_layer(config, layer) for layer in range(config.num_layers))
    scored = sum(_scored(config, layer) for layer in range(config.num_layers))
    return StepCost(
        token=2 * token,
        attended=scored,
        sampled=2 * config.hidden_size * config.vocab_size,
        bounded=_bounded(config),
    )


def _layer(c: V41Config, layer: int) -> int:
    """Multiply-adds of a token in a layer's matrices."""
    heads, mixes = c.num_heads * c.head_dim, 2 * c.streams + c.streams**2
    mixing = 2 * mixes * c.streams * c.hidden_size
    down = c.hidden_size * (c.q_rank + c.head_dim)
    out = heads * c.o_rank + c.o_groups * c.o_rank * c.hidden_size
    experts = c.hidden_size * (c.moe.num_experts + 3 * c.moe.inner * (c.moe.num_chosen + 1))
    return mixing + down + c.q_rank * heads + out + experts + _sources(c, layer) + _engram(c, layer)


def _sources(c: V41Config, layer: int) -> int:
    """What a layer computes because others read it: compressed rows (of pairs: a score and a latent per token), index
    keys (one per row), and the queries that choose."""
    topology, ratio, total = c.topology, c.topology.ratios[layer], 0
    if topology.owns_kv(layer):
        total += ratio * c.hidden_size * c.head_dim
    if topology.owns_index_keys(layer):
        total += c.head_dim * c.index_dim // ratio
    if topology.owns_index(layer):
        total += c.index_heads * (c.q_rank * c.index_dim + c.hidden_size)
    return total


def _engram(c: V41Config, layer: int) -> int:
    if c.engram is None or layer not in c.engram.layers:
        return 0
    return (c.streams + 1) * c.hidden_size * c.engram.width


def _scored(c: V41Config, layer: int) -> int:
    """Operations per pair of a token and a position before it: index scores of all entries, one per ``ratio``."""
    topology = c.topology
    if not topology.owns_index(layer) or topology.chooses_among_candidates(layer):
        return 0
    return 2 * c.index_heads * c.index_dim // topology.ratios[layer]


def _bounded(c: V41Config) -> list[BoundedPairs]:
    """Pairs that no context makes more of: scores and values in the window, of chosen entries, scores of candidates."""
    topology, layers = c.topology, range(c.num_layers)
    seen, found = 4 * c.num_heads * c.head_dim, [BoundedPairs(c.window, c.num_layers * 4 * c.num_heads * c.head_dim)]
    for ratio in sorted({ratio for ratio in topology.ratios if ratio}):
        found.append(BoundedPairs(ratio * c.index_topk, topology.ratios.count(ratio) * seen // ratio))
    among = [n for n in layers if topology.owns_index(n) and topology.chooses_among_candidates(n)]
    if topology.candidates is not None and among:
        ratio, entries = topology.ratios[among[0]], topology.candidates.num_blocks * topology.candidates.block_size
        found.append(BoundedPairs(ratio * entries, len(among) * 2 * c.index_heads * c.index_dim // ratio))
    return found
