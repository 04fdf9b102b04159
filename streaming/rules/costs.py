"""Finds rules that are too costly for their tenant: processor time of a minute against a limit."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from mqlake.records.rule_facts import RuleKey
from mqlake.records.rules import RuleMetricsKey
from mqlake.records.tenants import decode_tenant, tenant_of
from streaming.rules.changes import WINDOW_SECONDS

_NS_PER_MS: Final = 1_000_000


class RuleCosts:
    """Adds up the time that the evaluation of each rule takes; pure, the time is an argument.

    Args:
        default_ms: Milliseconds a second that the rules of a tenant without a limit of its own may
            take; 0: any number.
    """

    def __init__(self, default_ms: int) -> None:
        self._default_ms = default_ms
        self._limits: dict[str, int] = {}
        self._counted: dict[RuleMetricsKey, int] = {}
        self._spent: dict[RuleKey, deque[tuple[float, int]]] = {}

    def apply_tenant(self, key: bytes, value: bytes | None) -> None:
        """Take a record of `mqlake.gateways`, if it is of a tenant.

        Raises:
            InvalidRecord: It cannot be read; the limit of before stays.
        """
        tenant = tenant_of(key)
        if tenant is None:
            return
        limit = 0 if value is None else decode_tenant(value).limits.rule_ms_per_second
        self._limits[tenant] = limit
        if not limit:
            del self._limits[tenant]

    def add(self, at: float, key: RuleMetricsKey, counters: Mapping[str, Any] | None) -> None:
        """Take the counters of a rule from a process; None: it counts it no more.

        Its first counters are of an unknown time, and count for nothing.

        Args:
            at: Seconds of a monotonic clock.
            key: Which process, and which rule.
            counters: With `evaluation_ns`.
        """
        if counters is None:
            self._counted.pop(key, None)
            return
        counted = int(counters.get("evaluation_ns", 0))
        before = self._counted.get(key, counted)
        self._counted[key] = counted
        # Less than before: it has begun again.
        spent = counted - before if counted >= before else counted
        if spent:
            self._spent.setdefault((key.tenant, key.rule), deque()).append((at, spent))

    def forget(self, rule: RuleKey) -> None:
        """Let nothing count any more that a rule has taken."""
        self._spent.pop(rule, None)

    def take_costliest(
        self, at: float, is_running: Callable[[RuleKey], bool]
    ) -> dict[RuleKey, str]:
        """Return the rules to pause, with the reason: the costliest, until the others are within.

        They are forgotten.
        """
        by_tenant: dict[str, dict[RuleKey, int]] = {}
        for rule, spent in list(self._spent.items()):
            while spent and spent[0][0] <= at - WINDOW_SECONDS:
                spent.popleft()
            if not spent:
                del self._spent[rule]
            elif is_running(rule):
                by_tenant.setdefault(rule[0], {})[rule] = sum(ns for _, ns in spent)
        found: dict[RuleKey, str] = {}
        for tenant, costs in by_tenant.items():
            limit = self._limits.get(tenant, self._default_ms)
            while limit and sum(costs.values()) > limit * _NS_PER_MS * WINDOW_SECONDS:
                costliest = max(costs, key=lambda rule: (costs[rule], rule))
                found[costliest] = _reason(tenant, limit, sum(costs.values()), costs[costliest])
                del costs[costliest]
                self.forget(costliest)
        return found


def _reason(tenant: str, limit: int, all_ns: int, own_ns: int) -> str:
    all_ms, own_ms = (ns / _NS_PER_MS / WINDOW_SECONDS for ns in (all_ns, own_ns))
    return (
        f"paused: over the last minute the rules of tenant {tenant!r} took {all_ms:.1f} ms of "
        f"processor time a second, {limit} are allowed (rule_ms_per_second), and this one, with "
        f"{own_ms:.1f} ms, the most of them; make it cheaper or the limit larger, then resume it"
    )
