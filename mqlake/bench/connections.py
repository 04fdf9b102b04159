"""What connections cost: time to open and close them, memory to hold them."""

import time
from functools import partial
from typing import Final

import psutil

from mqlake.bench.connector import hold_connections, run_cycles
from mqlake.bench.figures import Figures, figure, percentiles
from mqlake.bench.system import Bench, fresh_gateway

CYCLES: Final = 6_000
CYCLES_IN_FLIGHT: Final = 100

FIRST_CONNECTIONS: Final = 2_500
IDLE_CONNECTIONS: Final = 5_000
SETTLE_SECONDS: Final = 2.0
"""For whatever a gateway has left to do for a new connection after its last answer."""

KIB: Final = 1024


def measure_connects(bench: Bench) -> Figures:
    """CONNECT, CONNACK, DISCONNECT, closed by the gateway: 3.1, 3.1.1 and 5.0 in turn, no TLS."""
    bench.await_quiet()
    done = run_cycles(
        bench.programs.connector, bench.gateways[:1], cycles=CYCLES, in_flight=CYCLES_IN_FLIGHT
    )
    figures = {figure("connects, one gateway", "connections/s"): done.per_second}
    name = f"connect to CONNACK, {CYCLES_IN_FLIGHT} at once"
    return figures | percentiles(name, done.connack_ms)


def measure_connection_memory(bench: Bench) -> Figures:
    """What a gateway grows by when 5,000 clients connect, and when each then subscribes.

    It has served nobody before, and other clients come first: what starting has left free in the
    process is used up by them, so the 5,000 are not counted too low.
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
