"""More messages than a gateway can take, and a log that stands still: a short sample.

`bin/mqlake bench --only overload` has the long one, with what another client notices of it.
"""

import asyncio
from pathlib import Path

import pytest

from mqlake.bench.gateways import running_fleet
from mqlake.bench.overload import GATEWAY_NAME, Seconds, overload
from mqlake.bench.programs import build_programs

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

MOST_MORE_BYTES = 300 * 1024**2
"""What the queue to the log and the sockets of 200 clients may take."""


def test_all_is_acknowledged_in_bounded_memory_and_then_all_is_well(tmp_path: Path) -> None:
    programs = build_programs(tmp_path)
    with running_fleet(tmp_path) as fleet:
        fleet.start(GATEWAY_NAME)
        seconds = Seconds(quiet=1, before=1, stopped=3, after=2)
        seen = asyncio.run(overload(programs, fleet, seconds))
    assert seen.flood is not None
    assert seen.flood.completed("messages to be acknowledged").acknowledged > 1_000
    assert 2 in seen.steps, "publishers were read no further while the log stood still"
    assert max(seen.steps) == 2, "nobody was turned away"
    assert seen.resident_bytes - seen.begun_bytes < MOST_MORE_BYTES
