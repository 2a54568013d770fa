"""vLLM's names for our metrics, as a frozen list: a dashboard made for vLLM finds exactly these, with these labels."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from headrace.obs.export import Exporter
from headrace.obs.metrics import BY_NAME, TABLE, Metrics

LABELS = ("model_name", "engine")
GAUGES = {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"}
COUNTERS = {
    "prefix_cache_queries",
    "prefix_cache_hits",
    "num_preemptions",
    "prompt_tokens",
    "generation_tokens",
    "request_success",
    "spec_decode_num_drafts",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
    "spec_decode_num_accepted_tokens_per_pos",
}
HISTOGRAMS = {
    "iteration_tokens_total",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "request_decode_time_seconds",
    "e2e_request_latency_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
}
FURTHER = {"request_success": ("finished_reason",), "spec_decode_num_accepted_tokens_per_pos": ("position",)}


def test_the_page_has_exactly_these_names_kinds_and_labels() -> None:
    metrics = Metrics()
    metrics.add("requests", 1, "length")
    metrics.add("accepted_drafts_at", 1, "0")
    page = Exporter(metrics, "tiny", aliases=True).text().decode()
    found = [family for family in text_string_to_metric_families(page) if family.name.startswith("vllm:")]
    by_kind = {kind: {f.name.removeprefix("vllm:") for f in found if f.type == kind} for kind in KINDS}
    assert by_kind == KINDS
    for family in found:
        name = family.name.removeprefix("vllm:")
        own = ("le",) if name in HISTOGRAMS else ()
        first = family.samples[0]
        assert set(first.labels) == {*LABELS, *FURTHER.get(name, ()), *own}
        assert (first.labels["model_name"], first.labels["engine"]) == ("tiny", "0")
    assert {sample.name for family in found for sample in family.samples} >= {
        "vllm:generation_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "vllm:iteration_tokens_total_bucket",
        "vllm:inter_token_latency_seconds_count",
    }


KINDS = {"gauge": GAUGES, "counter": COUNTERS, "histogram": HISTOGRAMS}


def test_an_alias_stands_for_one_metric_and_of_its_kind() -> None:
    aliases = [metric.alias for metric in TABLE if metric.alias is not None]
    assert len(aliases) == len(set(aliases)) == sum(map(len, KINDS.values()))
    assert BY_NAME["requests_queued"].alias == "num_requests_waiting"  # the fair queue's too: autoscalers look here
