"""More than a gateway can take, of messages and of connections: short samples.

`bin/mqlake bench --only overload --only flood` has the long ones, with what another client notices.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.gateways.authentication import PASSWORD, USERS, write_settings
from bench.gateways.flood import flood
from bench.gateways.overload import GATEWAY_NAME, PUBLISHERS, Seconds, overload
from bench.load.connector import BenchLogins, run_cycles
from bench.load.loader import Load, run_load
from bench.load.programs import build_programs
from bench.systems.gateways import BenchFleet, running_fleet
from mqlake.errors import OperationalError
from tests.pace import within

pytestmark = pytest.mark.kafka

MOST_MORE_BYTES = 300 * 1024**2
"""What the queue to the log and the sockets of 200 clients may take."""
FLOOD = 2_000
MOST_WAIT_SECONDS = 10.0
"""Of a message, at the worst: for as long a gateway waits for `CONNECT`."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BenchFleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet")) as found:
        # Those that flood it are as slow as the machine, and no less welcome.
        found.start(GATEWAY_NAME, settings={"CONNECT_TIMEOUT_SECONDS": "120"})
        yield found


@pytest.mark.campaign("tests/ingest/gateway/test_receiving.py holds the bounds of a gateway")
def test_all_is_acknowledged_in_bounded_memory_and_then_all_is_well(
    fleet: BenchFleet, tmp_path: Path
) -> None:
    programs = build_programs(tmp_path)
    # While the log stands still the gateway has to say what it does about that: once a second.
    seconds = Seconds(quiet=1, before=1, stopped=6, after=2)
    seen = asyncio.run(overload(programs, fleet, seconds))
    assert seen.flood is not None
    assert seen.flood.completed("messages to be acknowledged").acknowledged > PUBLISHERS
    assert 2 in seen.steps, "publishers were read no further while the log stood still"
    assert max(seen.steps) == 2, "nobody was turned away"
    assert seen.resident_bytes - seen.begun_bytes < MOST_MORE_BYTES


@pytest.mark.campaign("the other test of this file is beyond its limits, too")
def test_a_client_is_served_while_others_connect_without_end(fleet: BenchFleet) -> None:
    quiet, floods = asyncio.run(flood(fleet, FLOOD, quiet_seconds=1))
    assert quiet
    for kind, seen in floods.items():
        assert seen.outcomes == {"let in": FLOOD}, kind
        assert seen.waits[-1] < within(MOST_WAIT_SECONDS), kind


@pytest.mark.campaign("it measures")
def test_what_is_measured_of_logins_is_let_in(fleet: BenchFleet, tmp_path: Path) -> None:
    """The files that the measurement writes are such that its clients come in."""
    programs = build_programs(tmp_path)
    fleet.start("asks", settings=write_settings(tmp_path))
    address = [fleet.gateway("asks").address]
    login = BenchLogins(USERS, PASSWORD)
    done = run_cycles(programs.connector, address, cycles=2 * USERS, in_flight=20, login=login)
    assert done.cycles == 2 * USERS
    wrong = BenchLogins(USERS, "wrong")
    with pytest.raises(OperationalError, match="CONNACK with return code"):
        run_cycles(programs.connector, address, cycles=1, login=wrong)
    load = Load(publish_to=address, publishers=2, window=10, seconds=0.5, warmup_seconds=0)
    result = run_load(programs.loader, load).completed("messages to be acknowledged")
    assert result.acknowledged > 0
    fleet.stop("asks")
