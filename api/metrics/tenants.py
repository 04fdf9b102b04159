"""Usage of each tenant, for Prometheus: from gateways' records in `mqlake.metrics`.

Counters are of one gateway, since its run began: a sum over gateways would fall when one of them
starts again, and Prometheus would take that for new messages.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from api.log.following import Followed, KeptInMemory
from api.metrics.rules import delete_keys, total
from mqlake.errors import InvalidRecord
from mqlake.metrics.families import Families
from mqlake.metrics.names import MOST, OTHER
from mqlake.tenant_metrics import (
    COUNTED,
    TenantMetrics,
    TenantMetricsKey,
    decode_tenant_metrics,
    decode_tenant_metrics_key,
    tenant_metrics_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from api.clients.cache import SessionCache
    from api.clients.presence import Gateways
    from api.log.appending import LogAppender
    from api.metrics.rules import MaterialisedMetrics
    from api.tenants.storage import Storage

OF_RULES: Final = {
    "rule_evaluations": "matched",
    "rule_outputs": "outputs",
    "rule_failures": "failed",
}
"""Name of the metric -> name of the rules' counter."""
RULE_TIME: Final = "rule_evaluation_ms"
"""Processor time, which Prometheus has in seconds."""
_MOST_SERIES: Final = 100 * MOST
"""Series of one metric: tenants times gateways or tables; those beyond are added up."""


class MaterialisedTenantMetrics(KeptInMemory):
    """Gateways' metrics of tenants; safe to use from any thread.

    Args:
        gateways: Metrics of one that is away, or of an earlier run, do not count.
    """

    def __init__(self, gateways: Gateways) -> None:
        self._gateways = gateways
        self._lock = threading.Lock()
        self._said: dict[TenantMetricsKey, TenantMetrics] = {}

    def forget(self) -> None:
        """Begin again."""
        with self._lock:
            self._said.clear()

    def complete(self) -> None:
        """Nothing waits for this."""

    def take(self, records: Sequence[Followed], *, is_old: bool) -> list[InvalidRecord]:
        """Apply records of `mqlake.metrics`."""
        refused: list[InvalidRecord] = []
        with self._lock:
            for record in records:
                key = decode_tenant_metrics_key(record.key)
                if key is None:
                    continue
                if record.value is None:
                    self._said.pop(key, None)
                    continue
                try:
                    self._said[key] = decode_tenant_metrics(record.value)
                except InvalidRecord as exc:
                    refused.append(exc)
        return refused

    def current(self) -> dict[TenantMetricsKey, TenantMetrics]:
        """Return the metrics of live gateways, of their present runs."""
        runs = {one.name: one.heartbeat.incarnation for one in self._gateways.all() if one.is_alive}
        with self._lock:
            said = dict(self._said)
        return {key: one for key, one in said.items() if runs.get(key.gateway) == one.incarnation}

    def keys(self, tenant: str) -> list[bytes]:
        """Return the keys of all records of a tenant."""
        with self._lock:
            return [tenant_metrics_key(key) for key in self._said if key.tenant == tenant]


def forget_tenant_metrics(log: LogAppender, view: MaterialisedTenantMetrics, tenant: str) -> None:
    """Forget all that was counted of a tenant's clients.

    Raises:
        LogError: The log does not answer.
    """
    if keys := view.keys(tenant):
        delete_keys(log, view, keys)


class TenantFigures:
    """All known usage of tenants.

    Args:
        view: Metrics of gateways.
        rules: Counters of rules.
        sessions: The stored sessions.
        storage: Sizes of tables.
    """

    def __init__(
        self,
        view: MaterialisedTenantMetrics,
        rules: MaterialisedMetrics,
        sessions: SessionCache,
        storage: Storage,
    ) -> None:
        self._view = view
        self._rules = rules
        self._sessions = sessions
        self._storage = storage

    def families(self, may_see: Callable[[str], bool]) -> Families:
        """Return the metrics of tenants; the first `MOST` by name stand for themselves.

        Args:
            may_see: Tells whether the caller may know of a tenant.

        Raises:
            OperationalError: Sessions are being read, or a table cannot be read.
        """
        current, sessions = self._view.current(), self._sessions.tenants()
        stored, rules = self._storage.all(), self._rules.tenants()
        known = {*sessions, *stored, *rules, *(key.tenant for key in current)}
        names = sorted(filter(may_see, known))
        shown = _Shown(names)
        for key, said in current.items():
            shown.add("connections", said.connections, key.tenant, key.gateway)
            for name in COUNTED:
                shown.add(f"{name}_total", said.counters[name], key.tenant, key.gateway)
        for tenant, tables in stored.items():
            for table, one in tables.items():
                shown.add("stored_rows", one.rows, tenant, table)
                shown.add("stored_bytes", one.size, tenant, table)
        for tenant in names:
            shown.add("sessions", sessions.get(tenant, 0), tenant)
            for kind, _, value in self._of_rules(tenant):
                if kind == RULE_TIME:
                    shown.add("rule_evaluation_seconds_total", value / 1000, tenant)
                else:
                    shown.add(f"{kind}_total", value, tenant)
        return shown.families

    def rows(self, tenant: str) -> Iterable[tuple[str, str, int]]:
        """Return a tenant's usage as rows of the relation `usage`: kind, name, value.

        Raises:
            OperationalError: As of `families`.
        """
        yield from self._of_rules(tenant)
        for key, said in sorted(self._view.current().items()):
            if key.tenant == tenant:
                yield "connections", key.gateway, said.connections
                for name in COUNTED:
                    yield name, key.gateway, said.counters[name]
        for table, one in sorted(self._storage.all().get(tenant, {}).items()):
            yield "stored_rows", table, one.rows
            yield "stored_bytes", table, one.size
        yield "sessions", "", self._sessions.tenants().get(tenant, 0)

    def _of_rules(self, tenant: str) -> Iterable[tuple[str, str, int]]:
        for rule_id in self._rules.rules_of(tenant):
            counters = self._rules.counters(tenant, rule_id)
            for kind, counter in OF_RULES.items():
                yield kind, rule_id, total(counters, counter)
            yield RULE_TIME, rule_id, total(counters, "evaluation_ns") // 1_000_000


class _Shown:
    """Takes the metrics of tenants that are shown; those beyond `MOST` are one."""

    def __init__(self, names: Sequence[str]) -> None:
        self.families = Families(most=_MOST_SERIES)
        self._labels = {name: name if place < MOST else OTHER for place, name in enumerate(names)}

    def add(self, name: str, value: float, tenant: str, *labels: str) -> None:
        label = self._labels.get(tenant)
        if label is not None:
            self.families.add(f"mqlake_tenant_{name}", value, label, *labels)
