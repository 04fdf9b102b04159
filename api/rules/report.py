"""Explanation of a rule as Spark runs it, and its metrics."""

from datetime import UTC, datetime
from typing import Final

from api.metrics.rules import Counters, MaterialisedMetrics, total
from api.rules.checking import compiled
from api.rules.materialised import Entry
from api.rules.views import (
    ActionMetrics,
    Explanation,
    MetricsView,
    RateView,
    SpanView,
    view_compiled,
)
from mqlake.records.outputs import run_name

ENGINE_QUERY: Final = "rules"
"""The query of all rules without memory."""


def explain(entry: Entry) -> Explanation:
    """Return a rule as Spark runs it, and for which offsets its versions count."""
    tenant, rule_id = entry.rule.tenant, entry.rule.id
    spans = entry.activation.spans if entry.activation is not None else ()
    rule = compiled(entry.rule.sql, entry.schemas)
    runs = [run_name(tenant, rule_id, span.change) for span in spans if span.plan is not None]
    return Explanation(
        id=rule_id,
        version=entry.rule.version,
        state=entry.state,
        query=ENGINE_QUERY if rule.plan is None else runs[-1] if runs else "",
        sources=sorted({log_topic for span in spans for log_topic in span.sources}),
        spans=[
            SpanView(
                version=span.version,
                sources={
                    log_topic: {"from": found.starts, "to": found.ends}
                    for log_topic, found in span.sources.items()
                },
                run=None if span.plan is None else run_name(tenant, rule_id, span.change),
            )
            for span in spans
        ],
        **view_compiled(rule),
    )


def view_metrics(metrics: MaterialisedMetrics, entry: Entry) -> MetricsView:
    """Return the counters of a rule since it was made or reset, as of about a second ago."""
    tenant, rule_id = entry.rule.tenant, entry.rule.id
    counters = metrics.counters(tenant, rule_id)
    rates = metrics.rates(tenant, rule_id)
    reset_at_ms = metrics.reset_at_ms(tenant, rule_id)
    names = ("matched", "passed", "no_result", "failed", "outputs", "late")
    lag_ms, outputs = total(counters, "lag_ms"), total(counters, "outputs")
    return MetricsView(
        id=rule_id,
        **{name: total(counters, name) for name in names},
        evaluation_ms=total(counters, "evaluation_ns") // 1_000_000,
        lag_ms_mean=round(lag_ms / outputs, 1) if lag_ms and outputs else None,
        matched_per_second=RateView(
            now=rates.now, last_5_minutes=rates.last_5_minutes, highest=rates.highest
        ),
        actions=_actions(entry, counters),
        reset_at=None
        if reset_at_ms is None
        else datetime.fromtimestamp(reset_at_ms / 1000, tz=UTC),
    )


def _actions(entry: Entry, counters: dict[str, Counters]) -> list[ActionMetrics]:
    found: dict[str, Counters] = {}
    for one in counters.values():
        found |= one.get("actions", {})
    views = []
    for index, spec in enumerate(entry.rule.actions):
        counted = dict(found.get(str(index), {}))
        latency_ms_sum = counted.pop("latency_ms_sum", 0)
        success = counted.get("success", 0)
        views.append(
            ActionMetrics(
                **{**counted, "function": spec.function},
                latency_ms_mean=round(latency_ms_sum / success, 2) if success else None,
            )
        )
    return views
