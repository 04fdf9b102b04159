"""Values as prometheus_client takes them, by the names of `mqlake.metrics.names`."""

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family

from mqlake.metrics.names import MOST, NAMES, OTHER


class Families:
    """Metrics of one scrape of a process.

    Names that are not in the table are refused. A metric with too many different labels is added up
    under `OTHER`.

    Args:
        most: Different labels of one metric.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._values: dict[str, dict[tuple[str, ...], float]] = {}
        self._histograms: dict[
            str, dict[tuple[str, ...], tuple[list[float], list[int], float]]
        ] = {}

    def add(self, name: str, value: float, *labels: str) -> None:
        """Add a value; to one of the same labels it is added."""
        _check(name, labels, ("counter", "gauge"))
        found = self._values.setdefault(name, {})
        key = self._bounded(labels, found)
        found[key] = found.get(key, 0) + value

    def add_histogram(
        self,
        name: str,
        bounds: Sequence[float],
        counts: Sequence[int],
        sum_seconds: float,
        *labels: str,
    ) -> None:
        """Add a histogram.

        Args:
            name: Which.
            bounds: Upper bounds of the classes in seconds.
            counts: Number in each class, and of values above them all.
            sum_seconds: Sum of all values.
            labels: In the order of the table.
        """
        _check(name, labels, ("histogram",))
        found = self._histograms.setdefault(name, {})
        key = self._bounded(labels, found)
        if key in found:
            _, before, seconds = found[key]
            counts = [one + other for one, other in zip(counts, before, strict=True)]
            sum_seconds += seconds
        found[key] = (list(bounds), list(counts), sum_seconds)

    def _bounded(
        self, labels: tuple[str, ...], found: Mapping[tuple[str, ...], object]
    ) -> tuple[str, ...]:
        if labels in found or len(found) < self._most or not labels:
            return labels
        return (OTHER,) * len(labels)

    def __iter__(self) -> Iterator[Family]:
        for name, values in self._values.items():
            metric = NAMES[name]
            family: CounterMetricFamily | GaugeMetricFamily
            if metric.kind == "counter":
                family = CounterMetricFamily(name, metric.words, labels=metric.labels)
            else:
                family = GaugeMetricFamily(name, metric.words, labels=metric.labels)
            for labels, value in values.items():
                family.add_metric(labels, value)
            yield family
        for name, histograms in self._histograms.items():
            metric = NAMES[name]
            shown = HistogramMetricFamily(name, metric.words, labels=metric.labels)
            for labels, (bounds, counts, seconds) in histograms.items():
                shown.add_metric(labels, _cumulative(bounds, counts), seconds)
            yield shown


def _check(name: str, labels: Sequence[str], kinds: tuple[str, ...]) -> None:
    metric = NAMES[name]
    if metric.kind not in kinds or len(labels) != len(metric.labels):
        raise ValueError(f"{name} is a {metric.kind} with labels {metric.labels}, not {labels}")


def _cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    total = 0
    buckets = []
    for bound, count in zip((*map(str, bounds), "+Inf"), counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets
