"""Rules that the controller pauses: they fail, take too long, or their run fails."""

import json

import pytest

from mqlake.clock import ManualClock
from mqlake.errors import LogError
from mqlake.records.messages import GATEWAYS, METRICS
from mqlake.records.rules import RuleMetricsKey, rule_metrics_key
from mqlake.records.tenants import KeptTenant, TenantLimits, encode_tenant, tenant_key
from streaming.rules.changes import Failures
from streaming.rules.log import RuleRecord
from tests.streaming.rule_control import (
    FailingOnce,
    MemoryLog,
    a_controller,
    current_change,
    report,
    step_that_fails,
)


@pytest.mark.parametrize(
    ("matched", "failed", "beyond", "state"),
    [
        (50_000, 10, 49_990, "running"),  # one publisher, all of whose messages fail
        (50_100, 99, 50_001, "running"),
        (50_200, 100, 50_000, "running"),  # half of what others sent was well
        (50_199, 100, 50_000, "paused"),  # ten publishers, and most of what others sent
    ],
)
def test_what_one_publisher_makes_fail_beyond_his_part_pauses_no_rule(
    matched: int, failed: int, beyond: int, state: str
) -> None:
    log, clock = MemoryLog(), ManualClock()
    controller = a_controller(log, clock)
    log.define("r", 1)
    controller.step()
    report(log, matched, failed, beyond=beyond)
    controller.step()
    assert log.activations()["r"].state == state


def test_a_rule_that_fails_again_and_again_is_paused_until_it_is_changed() -> None:
    log, clock = MemoryLog(), ManualClock()
    controller = a_controller(log, clock)
    log.define("r", 1)
    controller.step()
    first = current_change(log)
    report(log, 198, 99)
    controller.step()
    assert log.activations()["r"].state == "running"
    clock.advance(1)
    report(log, 202, 102)
    controller.step()
    paused = log.activations()["r"]
    assert (paused.state, paused.current) == ("paused", None)
    assert "failed" in (paused.error or "")
    clock.advance(1)
    report(log, 202, 102, change=first)
    controller.step()
    log.define("r", 2)
    controller.step()
    report(log, 210, 10)
    controller.step()
    assert log.activations()["r"].state == "running", "what failed before no longer counts"


def test_failures_that_are_told_late_do_not_pause_the_next_version() -> None:
    log, clock = MemoryLog(), ManualClock()
    controller = a_controller(log, clock)
    log.define("r", 1)
    controller.step()
    first = current_change(log)
    report(log, 120, 120)
    controller.step()
    assert log.activations()["r"].state == "paused"
    log.define("r", 2)
    controller.step()
    clock.advance(1)
    report(log, 300, 300, change=first)
    controller.step()
    assert log.activations()["r"].state == "running"
    clock.advance(1)
    report(log, 550, 250)
    controller.step()
    assert log.activations()["r"].state == "paused", "its own count"


def spend(log: MemoryLog, rule: str, milliseconds: int) -> None:
    """Report what evaluating a rule has taken so far."""
    key = rule_metrics_key(RuleMetricsKey("engine", "1", "default", rule))
    failing = {"change": 0, "failed": 0, "beyond": 0}
    value = {"matched": 0, "failing": failing, "evaluation_ns": milliseconds * 1_000_000}
    log.metrics.append(RuleRecord(METRICS, key, json.dumps(value).encode()))


def allow(log: MemoryLog, milliseconds: int) -> None:
    limits = TenantLimits(rule_ms_per_second=milliseconds)
    kept = KeptTenant(limits=limits, created_at=0, at=0, by="olga")
    log.metrics.append(RuleRecord(GATEWAYS, tenant_key("default"), encode_tenant(kept)))


def states(log: MemoryLog) -> dict[str, str]:
    return {rule: one.state for rule, one in log.activations().items()}


def test_the_costliest_rule_is_paused_when_its_tenant_may_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, clock = MemoryLog(), ManualClock()
    controller = a_controller(log, clock)
    log.define("cheap", 1)
    log.define("costly", 1)
    allow(log, 100)
    for rule in ("cheap", "costly"):
        spend(log, rule, 0)
    controller.step()
    for at in range(1, 60):
        clock.advance(1)
        spend(log, "cheap", 10 * at)
        spend(log, "costly", 110 * at)
        controller.step()
        if states(log)["costly"] == "paused":
            break
    assert at == 51, "6,000 ms in a minute are allowed, 120 a second were taken"
    assert states(log) == {"cheap": "running", "costly": "paused"}
    error = log.activations()["costly"].error or ""
    assert error.startswith("paused: over the last minute the rules of tenant 'default' took 102.0")
    assert "100 are allowed (rule_ms_per_second)" in error
    clock.advance(1)
    spend(log, "costly", 110 * 60)  # told late: what it took until it was paused
    controller.step()
    log.define("costly", 2)
    allow(log, 5)
    controller.step()
    assert states(log)["costly"] == "running", "it has taken nothing since it was resumed"
    assert states(log)["cheap"] == "paused", "the limit counts at once"


def test_a_pause_for_costs_is_not_forgotten_when_the_log_fails() -> None:
    log, clock = MemoryLog(), ManualClock()
    controller = a_controller(log, clock)
    log.define("r", 1)
    allow(log, 1)
    spend(log, "r", 0)
    controller.step()
    spend(log, "r", 1_000)
    controller = step_that_fails(controller, log, 1, is_killed=False)
    for _ in range(2):
        controller.step()
    assert states(log) == {"r": "paused"}


def test_failures_count_for_a_minute() -> None:
    failures = Failures(100, 0.5)
    assert not failures.add(0.0, 1000, 99)
    assert not failures.add(30.0, 1060, 150)
    assert not failures.add(90.0, 1100, 190)
    assert not failures.add(91.0, 1200, 249)
    assert failures.add(92.0, 1201, 291)


@pytest.mark.parametrize("fails_at", range(1, 6))
def test_a_pause_is_not_forgotten_when_the_log_fails(fails_at: int) -> None:
    log = MemoryLog()
    controller = a_controller(log)
    log.define("r", 1, sql="memory")
    controller.step()
    assert controller.runs is not None
    controller.pause(controller.runs[0], "why")
    log.fail = FailingOnce(fails_at, LogError("x", definite=False))
    with pytest.raises(LogError):
        controller.step()
    log.fail = lambda: None
    for _ in range(2):
        controller.step()
    found = log.activations()["r"]
    assert (found.state, found.error, found.current) == ("paused", "why", None)
