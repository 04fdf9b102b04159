"""Tests wait for events; who sleeps has a reason that is no wait, and is listed here."""

import re
from pathlib import Path

from tests.gate.classes import ROOT

SLEEPS = {
    "tests/waiting.py": 1,
    "tests/launcher/toy_system.py": 1,  # the same in programs that a supervisor starts
    "tests/resilience/test_local.py": 1,  # and one that a target does
    # The pace of a load, an attack, a heart, or a clock that a test advances
    "tests/api/test_spark.py": 1,
    "tests/ingest/federation/sites/test_groups.py": 1,
    "tests/ingest/federation/brokers/test_service.py": 1,
    "tests/ingest/gateway/test_fuzz.py": 1,
    "tests/ingest/gateway/test_retained_shards.py": 1,
    "tests/ingest/gateway/test_returns.py": 1,
    "tests/ingest/gateway/test_survival.py": 1,
    "tests/ingest/hostile/test_slow.py": 1,
    "tests/integration/test_gateway_failures.py": 1,
    "tests/integration/test_rules_stateful.py": 1,
    "tests/resilience/test_proxy.py": 1,
    # Who is slow: a service that answers late, a part that starts late or beats
    "tests/launcher/test_supervisor.py": 2,
    "tests/rules/runner/web.py": 1,
    # What is told to come again after so many seconds does
    "tests/integration/test_query_application.py": 1,
    "tests/integration/test_rules_api.py": 1,
    # A sleep is what is tested, or time without work
    "tests/resilience/test_machines.py": 3,
    "tests/streaming/query/test_keeper.py": 1,
    "tests/streaming/test_rule_table.py": 1,
}
"""Calls by file. None is added but for such a reason, and those that go are taken off."""
MOST = 24

_SLEEP = re.compile(r"(?<!def )(?<!pg_)\bsleep\((?!0\)|\))")
"""Of some time, in texts of programs too: without any it lets others have their turn."""


def sleeps(file: Path) -> int:
    return len(_SLEEP.findall(file.read_text(encoding="utf-8")))


def test_what_is_a_sleep(tmp_path: Path) -> None:
    file = tmp_path / "test_a.py"
    file.write_text("time.sleep(0.1)\nawait asyncio.sleep(0)\n'pg_sleep(9)'\nsleep(TURN)\n")
    assert sleeps(file) == 2


def test_no_test_waits_for_a_time() -> None:
    files = (file for file in sorted((ROOT / "tests").rglob("*.py")) if file != Path(__file__))
    found = {file.relative_to(ROOT).as_posix(): sleeps(file) for file in files}
    assert {file: count for file, count in found.items() if count} == SLEEPS
    assert sum(SLEEPS.values()) <= MOST
