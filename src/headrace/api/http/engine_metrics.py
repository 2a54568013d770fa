"""An engine's snapshot becomes metrics. Copies and divides; measures nothing and knows no exposition format."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.contract.stats import EngineStats, OverlapStats, StepCost
from headrace.obs.metrics import Metrics


def put_engine(metrics: Metrics, stats: EngineStats, cost: StepCost | None) -> None:
    """``cost``: what the model's operations cost, where it is known."""
    put = metrics.put
    put("requests_running", stats.running)
    put("requests_waiting", stats.waiting)
    put("kv_cache_blocks", stats.num_blocks)
    put("kv_cache_used_blocks", stats.used_blocks)
    put("kv_cache_usage_ratio", _share(stats.used_blocks, stats.num_blocks))
    put("prefix_cache_queries", stats.prefix_queries)
    put("prefix_cache_hits", stats.prefix_hits)
    put("preemptions", stats.preemptions)
    put("failed_steps", stats.failed_steps)
    put("sampled_tokens", stats.sampled_tokens)
    put("draft_tokens", stats.verified_drafts)
    put("accepted_draft_tokens", stats.accepted_drafts)
    put("drafted_sequences", stats.drafted_sequences)
    for place, count in enumerate(stats.accepted_at):
        put("accepted_drafts_at", count, str(place))
    put("speculating", float(stats.speculating))
    for event, count in stats.kv_store.items():
        put("kv_store_events", count, event)
    for mode, count in stats.graph_steps.items():
        put("graph_steps", count, mode)
    put("expert_moves", stats.experts.moves)
    put("moe_lb", stats.experts.balance)
    _put_steps(metrics, stats, cost)
    _put_overlap(metrics, stats.overlap)


def _put_steps(metrics: Metrics, stats: EngineStats, cost: StepCost | None) -> None:
    """What steps were made of, what they had room for, what of them came to nothing."""
    put = metrics.put
    put("steps", stats.steps)
    put("step_tokens", stats.decode_tokens, "decode")
    put("step_tokens", stats.scheduled_tokens - stats.decode_tokens, "prefill")
    named = {"prefill": stats.prefill_steps, "mixed": stats.mixed_steps, "company": stats.company_steps}
    for kind, count in {**named, "decode": stats.steps - sum(named.values())}.items():
        put("step_kinds", count, kind)
    put("token_budget_left", stats.token_budget_left)
    put("step_budget_tokens", stats.budget_tokens)
    put("step_padding_tokens", stats.gone_tokens, "ended")
    put("step_padding_tokens", stats.dropped_tokens, "gave_way")
    put("step_padding_tokens", stats.verified_drafts - stats.accepted_drafts, "rejected_draft")
    put("step_busy_seconds", stats.busy_s)
    if cost is None:
        metrics.leave_out("step_flops")
    else:
        put("step_flops", cost.of(stats))
    metrics.put_histogram("step_size_tokens", stats.size_counts, stats.size_tokens)


def _put_overlap(metrics: Metrics, overlap: OverlapStats) -> None:
    put = metrics.put
    put("device_busy_seconds", overlap.busy_ns / 1e9)
    put("device_bubble_seconds", overlap.bubble_ns / 1e9)
    put("host_seconds", overlap.host_ns / 1e9)
    put("overlap_ratio", overlap.overlap_ratio)
    metrics.put_histogram("step_seconds", overlap.busy_counts, overlap.busy_ns / 1e9)
    metrics.put_histogram("step_bubble_seconds", overlap.bubble_counts, overlap.bubble_ns / 1e9)


def put_ranks(metrics: Metrics, ranks: Sequence[EngineStats]) -> None:
    """What differs between the ranks of a group; an engine on its own is rank 0, and of a pair the prompt engine. A
    group that is gone has no gauges."""
    put = metrics.put
    for name in ("rank_requests_running", "rank_requests_waiting", "rank_kv_cache_usage_ratio"):
        metrics.leave_out(name)
    put("engines", len(ranks))
    for number, stats in enumerate(ranks):
        rank = str(number)
        put("rank_requests_running", stats.running, rank)
        put("rank_requests_waiting", stats.waiting, rank)
        put("rank_kv_cache_usage_ratio", _share(stats.used_blocks, stats.num_blocks), rank)
        put("rank_steps", stats.steps, rank)
        put("rank_step_tokens", stats.scheduled_tokens, rank)
        put("rank_expert_rows", stats.experts.rows, rank)
        for outcome, count in stats.votes.items():
            put("votes", count, rank, outcome)
        put("vote_wait_seconds", stats.vote_wait_s, rank)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
