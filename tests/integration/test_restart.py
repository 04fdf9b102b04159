"""Parts of a running system that are started again on purpose."""

import json
from typing import Any

import pytest

from launcher.testing.systems import LocalSystem, await_condition
from tests.integration.test_query_application import A_SECOND, LONGEST_SECONDS, Traffic
from tests.integration.test_rules_api import Rest
from tests.pace import within

pytestmark = [pytest.mark.system, pytest.mark.timeout(700)]

UNCOUNTED_SECONDS = 10.0
"""That pass between the last count of one and the first of the other."""


def restart(system: LocalSystem, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Start a process again; return what `status` said of it before, and says after that."""
    system.await_healthy()
    before = system.process(name)
    done = system.run("restart", name)
    assert done.returncode == 0, done.stderr
    after = system.process(name)
    assert after["pid"] != before["pid"]
    assert after["figures"]["java_pid"] != before["figures"]["java_pid"]
    assert after["restarts"] == before["restarts"], "that was no failure"
    return before, after


@pytest.mark.promise
def test_a_router_is_followed_by_another_without_a_gap(system: LocalSystem) -> None:
    rest = Rest(system)
    rule = {"id": "restart", "sql": 'SELECT payload AS at FROM "isolation/#"', "actions": []}
    rest.make("/rules", rule)
    traffic = Traffic(system)
    _, after = restart(system, "router")
    at_once = traffic.sent

    def counted() -> int:
        found: int = rest.get("/rules/restart/metrics")["matched"]
        return found

    await_condition(lambda: counted() > at_once, "the second one counts")
    traffic.end()
    assert len(traffic.seconds) == traffic.sent > 0, "each once"
    uncounted = A_SECOND * within(UNCOUNTED_SECONDS)
    await_condition(lambda: counted() >= traffic.sent - uncounted, "all but some are counted")
    assert counted() <= traffic.sent, "none is counted by both"
    assert rest.ask("DELETE", "/rules/restart")[0] == 204
    assert max(traffic.seconds) < within(LONGEST_SECONDS), "a Spark that starts is away for longer"
    names = [one["name"] for one in system.status()["processes"]]
    assert names.count("router") == 1
    assert "router-next" not in names
    assert after["figures"]["queries"]["router"]["active"]
    system.await_healthy()


@pytest.mark.campaign("test_lossless.py and test_state.py hold what tables get")
def test_messages_flow_while_the_lake_is_away_and_are_in_the_tables_after_that(
    system: LocalSystem,
) -> None:
    traffic = Traffic(system)
    routing = system.process("router")["pid"]
    restart(system, "lake")
    traffic.end()
    assert len(traffic.seconds) == traffic.sent > 0
    assert max(traffic.seconds) < within(LONGEST_SECONDS)
    assert system.process("router")["pid"] == routing
    statement = "SELECT count(*) AS n FROM messages WHERE topic = 'isolation/a'"

    def stored() -> int:
        result = system.run("sql", statement, "--format", "json")
        found: int = json.loads(result.stdout)[0]["n"]
        return found

    before = stored()
    more = Traffic(system)
    more.end()
    await_condition(lambda: stored() >= before + more.sent, "what came is in the table")


def test_what_does_not_run_is_not_started_again(system: LocalSystem) -> None:
    done = system.run("restart", "nobody")
    assert done.returncode == 1
    assert "no process nobody runs" in done.stderr
