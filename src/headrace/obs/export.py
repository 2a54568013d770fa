"""Metrics as Prometheus reads them: every row of the table under ``headrace_``, and on request under vLLM's names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

from .metrics import TABLE, Histogram, Kind, Metric, Metrics

PREFIX = "headrace_"
ALIAS_PREFIX = "vllm:"
ALIAS_LABELS = ("model_name", "engine")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exporter:
    """``aliases``: also vLLM's names, with the labels ``model_name`` and ``engine``, so that dashboards made for them
    light up. All ranks of a group are engine 0: what differs between them is in the rows by rank."""

    def __init__(self, metrics: Metrics, model_name: str, aliases: bool = False) -> None:
        self._metrics = metrics
        self._model_name = model_name
        self._aliases = aliases
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def describe(self) -> Iterable[Any]:
        """The registry asks at registration; naming nothing keeps it from collecting twice."""
        return []

    def collect(self) -> Iterator[Any]:
        for metric in TABLE:
            yield self._family(metric, PREFIX + metric.name, (), ())
        for metric in TABLE if self._aliases else ():
            if metric.alias is not None:
                yield self._family(metric, ALIAS_PREFIX + metric.alias, ALIAS_LABELS, (self._model_name, "0"))

    def _family(self, metric: Metric, name: str, extra: tuple[str, ...], fixed: tuple[str, ...]) -> Any:
        labels = [*extra, *metric.labels]
        if metric.kind is Kind.HISTOGRAM:
            family: Any = HistogramMetricFamily(name, metric.help, labels=labels)
            histogram = self._metrics.histograms[metric.name]
            family.add_metric(list(fixed), _cumulative(histogram), histogram.sum)
            return family
        make: Any = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
        family = make(name, metric.help, labels=labels)
        for values, amount in self._metrics.values[metric.name].items():
            family.add_metric([*fixed, *values], amount)
        return family

    def text(self) -> bytes:
        """The whole page."""
        return generate_latest(self._registry)


def _cumulative(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in histogram.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(histogram.counts))))
