"""Cost of connections: time to open and close them, memory to hold them."""

import time
from functools import partial
from typing import Final

import psutil

from bench.load.connector import Cycle, hold_connections, run_cycles
from bench.load.programs import LoadPrograms
from bench.results.figures import Figures, figure, percentiles
from bench.systems.system import Bench, fresh_gateway

CYCLES: Final = 6_000
CYCLES_IN_FLIGHT: Final = 100

KINDS: Final = {
    "clean": (False, False),
    "sessions that outlive it": (True, False),
    "clean, one subscription each": (False, True),
    "sessions that outlive it, one subscription each": (True, True),
}
"""For each kind of client: does its session outlive the connection, does it subscribe."""

FIRST_CONNECTIONS: Final = 2_500
IDLE_CONNECTIONS: Final = 5_000
SETTLE_SECONDS: Final = 2.0
"""For work that a gateway has left for a new connection after its last answer."""

KIB: Final = 1024


def measure_connects(bench: Bench) -> Figures:
    """Connects at one gateway of the system, which owns its part of the shards."""
    figures: Figures = {}
    gateway = bench.state.gateways[0]
    pid = next(one.pid for one in bench.state.processes if one.name == gateway.name)
    assert pid is not None
    for kind in KINDS:
        bench.await_quiet()
        address = f"127.0.0.1:{gateway.port}"
        figures |= connects(bench.programs, address, pid, "connects, one gateway", kind)
    return figures


def connects(programs: LoadPrograms, address: str, pid: int, what: str, kind: str) -> Figures:
    """CONNECT, CONNACK, perhaps SUBSCRIBE and SUBACK, DISCONNECT, closed by the gateway; no TLS.

    3.1, 3.1.1 and 5.0 in turn. The load tool shares the processor: so the gateway's own time for a
    connect is shown, too.

    Args:
        programs: Compiled load generators.
        address: Host and port of the gateway.
        pid: Process of the gateway.
        what: Names the figures.
        kind: One of `KINDS`.
    """
    process = psutil.Process(pid)
    keep, subscribe = KINDS[kind]
    before = process.cpu_times()
    done = run_cycles(
        programs.connector,
        [address],
        cycles=CYCLES,
        in_flight=CYCLES_IN_FLIGHT,
        cycle=Cycle(keep=keep, subscribe=subscribe),
    )
    after = process.cpu_times()
    seconds = after.user + after.system - before.user - before.system
    return {
        figure(f"{what}, {kind}", "connections/s"): done.per_second,
        figure(f"{what}, {kind}, its processor", "us"): seconds / CYCLES * 1e6,
        **percentiles(f"{kind}, CONNACK, {CYCLES_IN_FLIGHT} at once", done.connack_ms),
    }


def measure_connection_memory(bench: Bench) -> Figures:
    """Growth of a gateway when 5,000 clients connect, and when each then subscribes.

    It has served no client before, and other clients come first: they use up the memory that
    starting has left free in the process, so the 5,000 are not counted too low.
    """
    with fresh_gateway(bench.state) as gateway:
        process = psutil.Process(gateway.pid)
        hold = partial(hold_connections, bench.programs.connector, [gateway.address])
        with hold(FIRST_CONNECTIONS) as first:
            first.subscribe()
            time.sleep(SETTLE_SECONDS)
            before = process.memory_info().rss
            with hold(IDLE_CONNECTIONS) as held:
                time.sleep(SETTLE_SECONDS)
                connected = process.memory_info().rss
                held.subscribe()
                time.sleep(SETTLE_SECONDS)
                subscribed = process.memory_info().rss
    each = KIB * IDLE_CONNECTIONS
    return {
        figure("memory of an idle connection", "KiB"): (connected - before) / each,
        figure("memory of an idle connection with a subscription", "KiB"): (
            (subscribed - before) / each
        ),
    }
