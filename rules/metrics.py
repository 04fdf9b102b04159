"""Counters of actions, and how they go into `mqlake.metrics`."""

import json
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mqlake.records.messages import METRICS
from mqlake.records.rules import RuleMetricsKey, rule_metrics_key
from mqlake.records.versions import VERSION_HEADER
from rules.actions.contract import NewRecord

LATENCY_BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 10_000, 60_000)
"""Upper bounds of the histogram's classes; one more takes the values above."""


@dataclass(slots=True)
class ActionCounters:
    """Counters of one action of a rule, over all its versions in this run of the process."""

    function: str
    success: int = 0
    failed: int = 0
    """Given up, with or without a fallback that helped."""
    retried: int = 0
    """Tries beyond the first."""
    dropped: int = 0
    """Never tried: the rule was deleted, or the log did not keep the output long enough."""
    latency_ms_sum: float = 0.0
    latency: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_MS) + 1))
    """From when the source message was received to the end of the action."""
    queued: int = 0
    """In memory, at the moment."""
    behind: int = 0
    """Outputs of all rules between where the action reads and where the process is."""

    def succeed(self, latency_ms: float) -> None:
        self.succeed_many(1, bisect_left(LATENCY_BOUNDS_MS, latency_ms), latency_ms)

    def succeed_many(self, count: int, index: int, latency_ms_sum: float) -> None:
        """Count outputs of one class of `latency`."""
        self.success += count
        self.latency_ms_sum += latency_ms_sum
        self.latency[index] += count

    def fields(self) -> dict[str, Any]:
        return {
            "function": self.function,
            "success": self.success,
            "failed": self.failed,
            "retried": self.retried,
            "dropped": self.dropped,
            "queued": self.queued,
            "behind": self.behind,
            "latency_ms_sum": round(self.latency_ms_sum, 1),
            "latency": dict(zip((*map(str, LATENCY_BOUNDS_MS), "inf"), self.latency, strict=True)),
        }


class RuleMetrics:
    """Counters of all rules, and which of them have changed since they were last written."""

    def __init__(self, process: str, incarnation: str) -> None:
        self._process = process
        self._incarnation = incarnation
        self._counters: dict[tuple[str, str], dict[int, ActionCounters]] = {}
        self._written: dict[tuple[str, str], bytes] = {}
        self._tombstones: list[NewRecord] = []
        self._past = dict.fromkeys(_SUMS, 0)

    def counters(self, tenant: str, rule: str, action: int, function: str) -> ActionCounters:
        actions = self._counters.setdefault((tenant, rule), {})
        counters = actions.get(action)
        if counters is None:
            counters = actions[action] = ActionCounters(function)
        counters.function = function
        return counters

    def forget(self, tenant: str, rule: str) -> None:
        """Drop a rule that is deleted: another one of its name begins at zero."""
        for counters in self._counters.pop((tenant, rule), {}).values():
            self.add_to_past({name: getattr(counters, name) for name in _SUMS})
        if self._written.pop((tenant, rule), None) is not None:
            self._tombstones.append(NewRecord(METRICS, self._key(tenant, rule), None, _HEADERS))

    def add_to_past(self, sums: Mapping[str, int]) -> None:
        """Keep in the totals the counts of rules that are no more."""
        for name, number in sums.items():
            self._past[name] += number

    def rules(self) -> list[tuple[str, str]]:
        """Return tenant and rule of all that have counters."""
        return list(self._counters)

    def begin_moment(self) -> None:
        """Set the counters to zero that lanes add up again for each record."""
        for actions in self._counters.values():
            for counters in actions.values():
                counters.queued = counters.behind = 0

    def changed(self) -> list[NewRecord]:
        """Return a record for each rule that has changed since the last call."""
        records, self._tombstones = self._tombstones, []
        for (tenant, rule), actions in self._counters.items():
            fields = {str(index): counters.fields() for index, counters in actions.items()}
            value = json.dumps({"actions": fields}, separators=(",", ":")).encode()
            if self._written.get((tenant, rule)) != value:
                self._written[tenant, rule] = value
                records.append(NewRecord(METRICS, self._key(tenant, rule), value, _HEADERS))
        return records

    def all(self) -> list[tuple[str, str, int, ActionCounters]]:
        """Return tenant, rule, action and counters of each action; from any thread."""
        return [
            (tenant, rule, action, counters)
            for (tenant, rule), actions in list(self._counters.items())
            for action, counters in list(actions.items())
        ]

    def totals(self) -> dict[str, int]:
        """Return sums over all rules, for the heartbeat."""
        all_counters = [c for actions in self._counters.values() for c in actions.values()]
        totals = {
            name: past + sum(getattr(counters, name) for counters in all_counters)
            for name, past in self._past.items()
        }
        return totals | {"queued": sum(counters.queued for counters in all_counters)}

    def _key(self, tenant: str, rule: str) -> bytes:
        return rule_metrics_key(RuleMetricsKey(self._process, self._incarnation, tenant, rule))


_SUMS: Final = ("success", "failed", "retried", "dropped")
_HEADERS: Final = [VERSION_HEADER]
