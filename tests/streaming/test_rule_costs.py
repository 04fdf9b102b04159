"""What rules may cost their tenant, beside a second implementation that remembers everything."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mqlake.records.rule_facts import RuleKey
from mqlake.records.rules import RuleMetricsKey
from mqlake.records.tenants import KeptTenant, TenantLimits, encode_tenant, tenant_key
from streaming.rules.costs import RuleCosts

MS = 1_000_000
DEFAULT_MS = 40


def limited(tenant: str, milliseconds: int) -> tuple[bytes, bytes]:
    limits = TenantLimits(rule_ms_per_second=milliseconds)
    return tenant_key(tenant), encode_tenant(KeptTenant(limits=limits, created_at=0, at=0, by="o"))


@dataclass
class Plain:
    """Knows who has taken how much when, and adds it all up each time it is asked."""

    taken: list[tuple[float, RuleKey, int]] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)

    def costs(self, at: float, tenant: str, running: set[RuleKey]) -> list[tuple[int, RuleKey]]:
        return sorted(
            (cost, rule)
            for rule in running
            if rule[0] == tenant
            and (cost := sum(ns for when, one, ns in self.taken if one == rule and at - when < 60))
        )

    def take_costliest(self, at: float, running: set[RuleKey]) -> set[RuleKey]:
        found: set[RuleKey] = set()
        for tenant in {rule[0] for rule in running}:
            limit = self.limits.get(tenant) or DEFAULT_MS
            costs = self.costs(at, tenant, running)
            while sum(cost for cost, _ in costs) > 60 * limit * MS:
                found.add(costs.pop()[1])
        self.taken = [one for one in self.taken if one[1] not in found]
        return found


TENANTS = st.sampled_from(["a", "b"])
RULES = st.sampled_from(["x", "y", "z"])
STEPS = st.one_of(
    st.tuples(st.just("advance"), st.integers(1, 40)),
    st.tuples(st.just("spend"), TENANTS, RULES, st.integers(0, 3_000)),
    st.tuples(st.just("begin anew"), TENANTS, RULES, st.integers(0, 3_000)),
    st.tuples(st.just("limit"), TENANTS, st.integers(0, 100)),
    st.tuples(st.just("stop"), TENANTS, RULES),
    st.tuples(st.just("start"), TENANTS, RULES),
)


class Process:
    """Counts one rule, as the engine does, in one run after the other."""

    def __init__(self, rule: RuleKey, costs: RuleCosts) -> None:
        self._rule = rule
        self._costs = costs
        self._run = self._counted = 0

    def begin(self, at: float, counted: int) -> None:
        self._run += 1
        self._counted = counted
        self.spend(at, 0)

    def spend(self, at: float, ns: int) -> None:
        self._counted += ns
        key = RuleMetricsKey("engine", str(self._run), *self._rule)
        self._costs.add(at, key, {"evaluation_ns": self._counted})


@given(st.lists(STEPS, max_size=60))
def test_what_is_paused_is_what_a_second_implementation_pauses(steps: list[Any]) -> None:
    costs, plain, at = RuleCosts(DEFAULT_MS), Plain(), 0.0
    running = {(tenant, rule) for tenant in "ab" for rule in "xyz"}
    processes = {rule: Process(rule, costs) for rule in running}
    for process in processes.values():
        process.begin(at, 0)
    for kind, *values in steps:
        rule = tuple(values[:2])
        if kind == "advance":
            at += values[0]
        elif kind == "limit":
            costs.apply_tenant(*limited(*values))
            plain.limits[values[0]] = values[1]
        elif kind == "stop":
            running.discard(rule)
        elif kind == "start":
            running.add(rule)
        elif kind == "begin anew":  # what it had counted when it was heard first is not known
            processes[rule].begin(at, values[2] * MS)
        else:
            processes[rule].spend(at, values[2] * MS)
            plain.taken.append((at, rule, values[2] * MS))
        found = costs.take_costliest(at, running.__contains__).keys()
        assert found == plain.take_costliest(at, running)
        running -= found


def test_a_count_that_begins_anew_counts_from_zero() -> None:
    costs, rule = RuleCosts(1), RuleMetricsKey("engine", "1", "a", "x")
    for counted in (100, 70, 30):  # 70 and 30 have begun anew
        costs.add(0.0, rule, {"evaluation_ns": counted * MS})
    assert costs.take_costliest(59.9, lambda _: True), "100 ms in a minute, 60 are allowed"
    costs.add(0.0, rule, {"evaluation_ns": 80 * MS})
    assert not costs.take_costliest(0.0, lambda _: True), "what was taken before is forgotten"


def test_a_process_of_before_that_counts_no_time_costs_nothing() -> None:
    costs, rule = RuleCosts(1), RuleMetricsKey("engine", "1", "a", "x")
    for counters in ({}, {"matched": 1_000}, None):
        costs.add(0.0, rule, counters)
    assert not costs.take_costliest(0.0, lambda _: True)


def test_without_a_limit_nothing_is_paused() -> None:
    costs, rule = RuleCosts(0), RuleMetricsKey("engine", "1", "a", "x")
    costs.apply_tenant(*limited("a", 1))
    costs.apply_tenant(tenant_key("a"), None)
    costs.apply_tenant(b"gateways/1", b"{}")
    for counted in (0, 10**15):
        costs.add(0.0, rule, {"evaluation_ns": counted})
    assert not costs.take_costliest(0.0, lambda _: True)
