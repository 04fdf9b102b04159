"""Follows `mqlake.rules` and `mqlake.metrics`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from api.following import Followed, LogFollower, Taker
from api.metrics.rules import MaterialisedMetrics
from api.metrics.tenants import MaterialisedTenantMetrics
from api.references.materialised import MaterialisedReferences
from api.rules.materialised import MaterialisedRules
from mqlake.errors import InvalidRecord
from mqlake.records import METRICS, RULES

LOG_TOPICS: Final = (RULES, METRICS)


class RulesFollower(LogFollower):
    """Keeps rules, reference tables and counters as the log has them.

    Args:
        data_dir: Of the system.
        view: Takes the rules.
        references: Takes the reference tables.
        metrics: Takes the counters of rules.
        of_tenants: Takes those of tenants.
    """

    poll_seconds = 0.05  # somebody waits for the engine's answer

    def __init__(
        self,
        data_dir: Path,
        view: MaterialisedRules,
        references: MaterialisedReferences,
        metrics: MaterialisedMetrics,
        of_tenants: MaterialisedTenantMetrics,
    ) -> None:
        super().__init__(data_dir, "rules", LOG_TOPICS)
        self._view = view
        self._references = references
        self._counters = metrics, of_tenants

    @contextmanager
    def taking(self) -> Iterator[Taker]:
        self._view.forget()
        self._references.forget()
        for one in self._counters:
            one.forget()
        yield _Taker(self._view, self._references, self._counters)


class _Taker(Taker):
    def __init__(
        self, view: MaterialisedRules, references: MaterialisedReferences, counters: Sequence[Taker]
    ) -> None:
        self._view = view
        self._references = references
        self._counters = counters

    def take(self, records: Sequence[Followed], *, is_old: bool) -> list[InvalidRecord]:
        rules = [one for one in records if one.log_topic == RULES]
        metrics = [one for one in records if one.log_topic == METRICS]
        refused = self._view.take(rules, is_old=is_old) if rules else []
        if rules:
            refused += self._references.take(rules, is_old=is_old)
        for counters in self._counters if metrics else ():
            refused += counters.take(metrics, is_old=is_old)
        return refused

    def complete(self) -> None:
        self._view.complete()
        self._references.complete()
