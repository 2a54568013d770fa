"""The metrics: one declared table, and a store of their values. Names, help and labels are said here and nowhere else.

Knows no exposition format (``export`` does) and holds no prompts, keys or other content.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0, 50000.0)
CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0)
STEP_TOKENS = tuple(float(1 << power) for power in range(16))
BUBBLE_SECONDS = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)


@dataclass(frozen=True, slots=True)
class Metric:
    """One row. ``alias`` is vLLM's name for the same thing (without the suffix that counters get). What differs in
    meaning has none."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    alias: str | None = None


def _counter(name: str, words: str, labels: tuple[str, ...] = (), alias: str | None = None) -> Metric:
    return Metric(name, Kind.COUNTER, words, labels, alias=alias)


def _gauge(name: str, words: str, alias: str | None = None, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(name, Kind.GAUGE, words, labels, alias=alias)


def _histogram(name: str, words: str, buckets: tuple[float, ...], alias: str | None = None) -> Metric:
    return Metric(name, Kind.HISTOGRAM, words, buckets=buckets, alias=alias)


TABLE: tuple[Metric, ...] = (
    _gauge("requests_running", "Sequences that take part in steps.", "num_requests_running"),
    _gauge("requests_waiting", "Sequences that wait in the engine to be scheduled."),
    _gauge(
        "requests_queued",
        "Sequences that wait: in the engine to be scheduled, or for their tenant's turn to go there.",
        "num_requests_waiting",
    ),
    _gauge("kv_cache_usage_ratio", "Share of the KV blocks in use, 0 to 1.", "kv_cache_usage_perc"),
    _gauge("kv_cache_blocks", "KV blocks of the pool."),
    _gauge("kv_cache_used_blocks", "KV blocks in use."),
    _gauge("token_budget_left", "Tokens the latest step left unused of its budget."),
    _gauge("engines", "Engines that are counted together: ranks of a group, or prompt and completion engine."),
    _gauge("engine_up", "1 while the engine answers."),
    _gauge("draining", "1 while the server finishes open requests and takes no new ones."),
    _gauge("open_sequences", "Sequences that the server has accepted and not yet answered to the end."),
    _gauge("tenant_requests_waiting", "Requests of a tenant in the fair queue.", labels=("tenant",)),
    _gauge("tenant_sequences_running", "Sequences of a tenant in the engine.", labels=("tenant",)),
    _counter("tenant_turns", "Sequences of a tenant that the fair queue let go to the engine.", ("tenant",)),
    _counter("tenant_wait_seconds", "Time that a tenant's sequences waited in the fair queue, added up.", ("tenant",)),
    _counter("tenant_prompt_tokens", "Prompt tokens of a tenant that went to the engine.", ("tenant",)),
    _counter("tenant_generation_tokens", "Tokens generated for a tenant.", ("tenant",)),
    _counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", alias="prefix_cache_queries"),
    _counter("prefix_cache_hits", "Prompt tokens found there.", alias="prefix_cache_hits"),
    _counter("preemptions", "Sequences that gave way and were recomputed.", alias="num_preemptions"),
    _counter("steps", "Steps launched."),
    _counter("failed_steps", "Steps that failed in the worker."),
    _counter("step_tokens", "Tokens computed in steps, by phase.", ("phase",)),
    _counter(
        "step_kinds",
        "Steps by what is in them: prefill, decode, mixed; company: nothing, other ranks run one.",
        ("kind",),
    ),
    _counter("step_budget_tokens", "Tokens that the steps launched had room for."),
    _counter(
        "step_padding_tokens",
        "Tokens computed in vain: rejected drafts, and slices whose sequence had ended or given way meanwhile.",
        ("reason",),
    ),
    _counter("step_busy_seconds", "Seconds with a step under way, of all engines together."),
    _counter("step_flops", "Floating-point operations of all steps; a multiply-add counts two; absent: not known."),
    _gauge("peak_flops", "What the machine can do a second, as the operator says; 0: not said."),
    _counter("sampled_tokens", "Tokens drawn."),
    _counter("draft_tokens", "Drafts verified.", alias="spec_decode_num_draft_tokens"),
    _counter("accepted_draft_tokens", "Drafts that were emitted.", alias="spec_decode_num_accepted_tokens"),
    _counter("drafted_sequences", "Sequences of a step that had drafts verified.", alias="spec_decode_num_drafts"),
    _counter(
        "accepted_drafts_at",
        "Drafts that were emitted, by their place among the drafts of a sequence's step.",
        ("position",),
        "spec_decode_num_accepted_tokens_per_pos",
    ),
    _gauge("speculating", "1 while drafts may be verified; 0 where speculation is off or paused because it loses."),
    _counter("graph_steps", "Steps by the graph mode they ran in.", ("mode",)),
    _counter("device_busy_seconds", "Time the device computed."),
    _counter("device_bubble_seconds", "Time the device stood idle although there was work."),
    _counter("host_seconds", "Time the loop worked, its waits for the device left out."),
    _gauge("overlap_ratio", "Share of the loop's own work hidden behind the device's, 0 to 1."),
    _histogram(
        "step_size_tokens", "Tokens a step was launched with, drafts included.", STEP_TOKENS, "iteration_tokens_total"
    ),
    _histogram("step_seconds", "Time the device computed for a step.", SECONDS),
    _histogram("step_bubble_seconds", "Device idle per step although there was work.", BUBBLE_SECONDS),
    _gauge("rank_requests_running", "Sequences that take part in steps, by rank of the group.", labels=("rank",)),
    _gauge("rank_requests_waiting", "Sequences that wait to be scheduled, by rank.", labels=("rank",)),
    _gauge("rank_kv_cache_usage_ratio", "Share of the KV blocks in use, by rank.", labels=("rank",)),
    _counter("rank_steps", "Steps launched, by rank; those in company of others included.", ("rank",)),
    _counter("rank_step_tokens", "Tokens computed in steps, by rank.", ("rank",)),
    _counter("votes", "Decisions of a voted group by what came of them, by rank.", ("rank", "outcome")),
    _counter("vote_wait_seconds", "Time spent on votes, waiting for other ranks included, by rank.", ("rank",)),
    _counter("rank_expert_rows", "Rows that a rank's experts computed, other ranks' included.", ("rank",)),
    _counter("expert_moves", "Experts that were copied from one rank to another."),
    _gauge("moe_lb", "Slowest over mean rank in computing experts; 1 is perfect, 0: not shared, or not yet known."),
    _counter("kv_store_events", "What happened between the engine and its KV store.", ("event",)),
    _counter("engine_restarts", "Times the engine process was started again after it died."),
    _counter("prompt_tokens", "Prompt tokens of accepted requests.", alias="prompt_tokens"),
    _counter("generation_tokens", "Tokens generated.", alias="generation_tokens"),
    _counter("requests", "Sequences by how they ended.", ("finished_reason",), alias="request_success"),
    _counter("http_responses", "HTTP answers by route and status.", ("route", "status")),
    _histogram(
        "time_to_first_token_seconds",
        "From the request's arrival to its first token.",
        SECONDS,
        "time_to_first_token_seconds",
    ),
    _histogram(
        "inter_token_latency_seconds",
        "From one step's tokens of a sequence to the next step's, undivided however many they are.",
        SECONDS,
        "inter_token_latency_seconds",
    ),
    _histogram(
        "request_time_per_output_token_seconds",
        "First token to last of a sequence, divided by the tokens after the first; 0 where there is but one.",
        SECONDS,
        "request_time_per_output_token_seconds",
    ),
    _histogram("request_decode_seconds", "First token to last of a sequence.", SECONDS, "request_decode_time_seconds"),
    _histogram("request_seconds", "From arrival to the end.", SECONDS, "e2e_request_latency_seconds"),
    _histogram("request_prompt_tokens", "Prompt length.", TOKENS, "request_prompt_tokens"),
    _histogram("request_generation_tokens", "Tokens generated per sequence.", TOKENS, "request_generation_tokens"),
    _histogram(
        "request_most_generation_tokens",
        "Tokens of the longest answer to a prompt.",
        TOKENS,
        "request_max_num_generation_tokens",
    ),
    _histogram("request_choices", "Answers asked for to a prompt.", CHOICES, "request_params_n"),
    _histogram("request_max_tokens", "Most tokens an answer may have.", TOKENS, "request_params_max_tokens"),
)
BY_NAME = {metric.name: metric for metric in TABLE}


class Histogram:
    """Counts per bucket (not cumulative; the last is everything above), and the sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


class Metrics:
    """Values of the table's metrics. Written and read on one thread. A name outside the table is a KeyError."""

    def __init__(self) -> None:
        self.values: dict[str, dict[tuple[str, ...], float]] = {
            m.name: defaultdict(float) for m in TABLE if m.kind is not Kind.HISTOGRAM
        }
        self.histograms = {m.name: Histogram(m.buckets) for m in TABLE if m.kind is Kind.HISTOGRAM}
        for metric in TABLE:
            if metric.kind is not Kind.HISTOGRAM and not metric.labels:
                self.values[metric.name][()] = 0.0

    def add(self, name: str, amount: float = 1.0, *labels: str) -> None:
        """Counts up."""
        self.values[name][labels] += amount

    def put(self, name: str, value: float, *labels: str) -> None:
        """Sets a gauge, or a counter that is kept elsewhere."""
        self.values[name][labels] = value

    def leave_out(self, name: str) -> None:
        """What nobody knows is no 0: the page has no value of it until one is put."""
        self.values[name].clear()

    def put_histogram(self, name: str, counts: list[int], total: float) -> None:
        """Sets a histogram that is kept elsewhere; one count per bucket and one for all above."""
        histogram = self.histograms[name]
        if len(counts) == len(histogram.counts):
            histogram.counts, histogram.sum = list(counts), total

    def observe(self, name: str, value: float, times: int = 1) -> None:
        self.histograms[name].observe(value, times)
