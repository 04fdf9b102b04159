"""`bin/mqlake demo` and `bin/mqlake bench` against a running system."""

import json
import re
from pathlib import Path

import pytest

from bench.load.connector import hold_connections
from bench.load.programs import build_programs
from bench.systems.system import fresh_gateway
from launcher.testing.systems import LocalSystem, await_condition

pytestmark = [pytest.mark.campaign("test_readme.py runs the demo"), pytest.mark.system]


def test_what_the_demo_published_is_what_the_history_counts(system: LocalSystem) -> None:
    demo = system.run("demo", "--messages", "500", "--speed", "500")
    assert demo.returncode == 0, demo.stderr
    for what in ("published", "acknowledged", "received"):
        assert re.search(rf"^{what} +500\b", demo.stdout, re.MULTILINE), demo.stdout
    assert re.search(r"^demo/\S+/temperature +2010-\d\d-\d\d \d\d:00 +\d+\.\d °F", demo.stdout)
    query = re.search(r'"(SELECT .*)"$', demo.stdout, re.MULTILINE)
    assert query is not None

    def counted() -> int:
        answer = system.run("sql", query[1], "--format", "csv")
        assert answer.returncode == 0, answer.stderr
        return int(answer.stdout.split()[-1])

    await_condition(lambda: counted() == 500, "the history has the 500 readings")


@pytest.mark.campaign("it measures")
def test_the_bench_measures_a_running_system(system: LocalSystem) -> None:
    bench = system.run("bench", "--only", "subscribe", "--only", "memory", "--json")
    assert bench.returncode == 0, bench.stderr
    figures = {figure["name"]: figure for figure in json.loads(bench.stdout)["figures"]}
    assert figures["new subscription to SUBACK, p50"]["median"] > 0
    assert figures["memory, gateway-1"]["unit"] == "MiB"
    whole = figures["memory, whole system"]["median"]
    assert whole > figures["memory, router"]["median"] > figures["memory, gateway-1"]["median"]


def test_a_gateway_for_a_measurement_comes_and_goes(system: LocalSystem, tmp_path: Path) -> None:
    connector = build_programs(tmp_path).connector
    with fresh_gateway(system.state()) as gateway:
        with hold_connections(connector, [gateway.address], 20) as held:
            held.subscribe()
        pid = gateway.pid
    assert not Path(f"/proc/{pid}").exists()
