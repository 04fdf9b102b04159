"""How long a system takes to start that has much to remember."""

import asyncio
import time
import uuid
from collections.abc import Iterator
from typing import Final

from bench.load.prepared import (
    PastMessage,
    await_retained,
    await_sessions,
    write_messages,
    write_sessions,
)
from bench.load.session_client import SessionClient
from bench.results.figures import Figures, figure
from bench.systems.system import Bench
from mqlake.errors import OperationalError

RETAINED: Final = 100_000
SESSIONS: Final = 50_000
PAYLOAD: Final = b"x" * 100
STARTS: Final = 3


def measure_cold_start(bench: Bench) -> list[Figures]:
    """`up` to ready with 100,000 retained messages and 50,000 sessions of absent clients."""
    system = bench.own
    if system is None:
        bench.note("only a system of the bench's own is stopped and started")
        return []
    name = f"bench-{uuid.uuid4().hex[:12]}"
    client_ids = [f"{name}-{number}" for number in range(SESSIONS)]
    began_at = time.monotonic()
    last = write_messages(bench.state.bootstrap_servers, _retained(name), retain=True)
    cursor = [last[partition] + 1 for partition in sorted(last)]
    write_sessions(bench.state.bootstrap_servers, client_ids, cursor, name)
    await_retained(bench.data_dir, last)
    await_sessions(bench.data_dir, SESSIONS)
    bench.note(
        f"prepared: {RETAINED:,} retained messages and {SESSIONS:,} sessions with a subscription "
        f"each, written into the log, in the tables after {time.monotonic() - began_at:.0f} s"
    )
    what = f"ready with {RETAINED:,} retained messages and {SESSIONS:,} sessions"
    results = []
    for number in range(STARTS):
        system.down()
        begin = time.monotonic()
        system.up()
        results.append({figure(what, "s"): time.monotonic() - begin})
        _check(bench)
        asyncio.run(_check_session(bench.gateways[0], client_ids[number]))
    return results


def _retained(name: str) -> Iterator[PastMessage]:
    now_ms = round(time.time() * 1000)
    for number in range(RETAINED):
        yield PastMessage(f"{name}/{number % 1000}/{number}", PAYLOAD, now_ms)


def _check(bench: Bench) -> None:
    """See that the gateways together say that they have everything."""
    names = {gateway.name for gateway in bench.state.gateways}
    found = [report.figures for report in bench.state.processes if report.name in names]
    retained = sum(one["retained"] for one in found)
    sessions = sum(one["sessions"] for one in found)
    if retained < RETAINED or sessions < SESSIONS:
        raise OperationalError(f"there are {retained} retained messages and {sessions} sessions")


async def _check_session(gateway: str, client_id: str) -> None:
    client = SessionClient(client_id)
    if not await client.connect(gateway):
        raise OperationalError(f"the session of {client_id} was lost")
    await client.disconnect()
