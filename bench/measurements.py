"""Measurements: functions from a bench to figures, listed in `MEASUREMENTS`."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from bench.load.loader import Latency, Load
from bench.parts.codec import measure_codec
from bench.parts.routing import measure_route_match
from bench.parts.subscribing import measure_gateway_match
from bench.results.figures import Figures, figure, percentiles
from bench.systems.processes import cpu_percent_of, processes_of
from bench.systems.system import Bench
from bench.whole.api import measure_api_publish, measure_live_feed
from bench.whole.balancer import measure_balancer
from bench.whole.budget import measure_budget
from bench.whole.connections import measure_connection_memory, measure_connects
from bench.whole.first_hour import measure_first_hour
from bench.whole.memory import memory_figures
from bench.whole.painting import measure_first_paint
from bench.whole.querying import measure_sql_day, measure_sql_point
from bench.whole.resuming import measure_resume, measure_resume_crowd, measure_resume_history
from bench.whole.rules import (
    measure_rules_300,
    measure_rules_500,
    measure_rules_change,
    measure_rules_dry_run,
    measure_rules_latency,
)
from bench.whole.saturation import measure_sustained
from bench.whole.starting import measure_cold_start
from launcher.testing.systems import LocalSystem
from mqlake.errors import OperationalError

WARM_UP_SECONDS: Final = 60.0
IDLE_SETTLE_SECONDS: Final = 60.0
"""Java compiles the code of a start for most of a minute."""
IDLE_SECONDS: Final = 15.0

LATENCY_SECONDS: Final = {100: 12.0, 1000: 32.0}

TAIL_SECONDS: Final = 300.0
TAIL_PAYLOAD_BYTES: Final = 64

PERSISTENT_PAIRS: Final = 3

FAN_OUT_WINDOW: Final = 50
"""Messages on their way at once: enough to keep router and gateway busy."""

CODEC_REPETITIONS: Final = 5


def measure_ready(bench: Bench) -> Figures:
    """Time from `up` on a new data directory to ready, caches warm."""
    return {} if bench.ready_seconds is None else {figure("ready", "s"): bench.ready_seconds}


def measure_idle(bench: Bench) -> Figures:
    """Processor time of each process while nothing is published."""
    time.sleep(IDLE_SETTLE_SECONDS)
    percent = cpu_percent_of(processes_of(bench.state), IDLE_SECONDS)
    figures = {figure(f"idle CPU, {name}", "% of a core"): used for name, used in percent.items()}
    figures[figure("idle CPU, whole system", "% of a core")] = sum(percent.values())
    return figures


def measure_memory(bench: Bench) -> Figures:
    """Memory of each process and what it is, after the loads put on before."""
    return memory_figures(processes_of(bench.state))


def _steady(publish_to: str, subscribe_to: str, rate: int, seconds: float) -> Load:
    """Return a load of `rate` messages a second from one gateway to another, or to itself."""
    return Load(
        publish_to=[publish_to],
        subscribe_to=[subscribe_to],
        publishers=10,
        subscribers=2,
        rate=float(rate),
        seconds=seconds,
        warmup_seconds=2.0,
    )


def warm_up(bench: Bench) -> None:
    """Have messages flow until Java has compiled their code: a system runs for months."""
    load = _steady(bench.gateways[0], bench.gateways[-1], 1000, WARM_UP_SECONDS)
    bench.run(load).completed("messages to warm up")


def measure_latency_100(bench: Bench) -> Figures:
    """Publish to PUBACK and to delivery at 100 messages a second."""
    return _latency(bench, 100)


def measure_latency_1000(bench: Bench) -> Figures:
    """Publish to PUBACK and to delivery at 1,000 messages a second."""
    return _latency(bench, 1000)


def _latency(bench: Bench, rate: int) -> Figures:
    gateways = bench.gateways
    paths = {"on the same gateway": gateways[0]}
    if len(gateways) > 1:
        paths["across gateways"] = gateways[1]
    figures: Figures = {}
    for path, subscribe_to in paths.items():
        load = _steady(gateways[0], subscribe_to, rate, LATENCY_SECONDS[rate])
        result = bench.run(load).completed(f"{rate}/s {path}")
        if subscribe_to == gateways[0]:
            figures |= percentiles(f"publish to PUBACK at {rate:,}/s", result.ack_ms)
        figures |= percentiles(f"publish to delivery {path} at {rate:,}/s", result.delivery_ms)
    return figures


def measure_tail(bench: Bench) -> Figures:
    """Publish to delivery across gateways for so long that all which comes now and then is in it.

    Small messages, while histories and tables are written.
    """
    load = _steady(bench.gateways[0], bench.gateways[-1], 1000, TAIL_SECONDS)
    load = replace(load, payload_bytes=TAIL_PAYLOAD_BYTES)
    result = bench.run(load).completed("messages for five minutes")
    figures = percentiles("publish to delivery for five minutes at 1,000/s", result.delivery_ms)
    longest = figure("longest time without a delivery at 1,000/s", "ms")
    return figures | {longest: result.longest_gap_ms}


def measure_hand_over(bench: Bench) -> Figures:
    """Publish to delivery for five minutes while another router takes over, as for an upgrade."""
    if bench.own is None:
        bench.note("hand-over: not measured, as others may use this system")
        return {}
    load = _steady(bench.gateways[0], bench.gateways[-1], 1000, TAIL_SECONDS)
    load = replace(load, payload_bytes=TAIL_PAYLOAD_BYTES)
    with ThreadPoolExecutor(1) as threads:
        bench.await_quiet()
        taking = threads.submit(_start_router_again, bench.own)
        result = bench.run(load).completed("messages across a hand-over")
        figures = {figure("another router takes over", "s"): taking.result()}
    figures |= percentiles("publish to delivery across a hand-over, 1,000/s", result.delivery_ms)
    longest = figure("longest time without a delivery across a hand-over", "ms")
    return figures | {longest: result.longest_gap_ms}


def _start_router_again(system: LocalSystem) -> float:
    """Return how many seconds that took, once messages have flowed for a while."""
    time.sleep(TAIL_SECONDS / 4)
    begin = time.monotonic()
    done = system.run("restart", "router")
    if done.returncode:
        raise OperationalError(f"the router was not started again: {done.stderr}")
    return time.monotonic() - begin


def measure_persistent_1000(bench: Bench) -> list[Figures]:
    """Publish to delivery to sessions that outlive their connections, beside those that do not.

    In turn, so that both see the same machine; the second pair the other way round.
    """
    load = _steady(bench.gateways[0], bench.gateways[-1], 1000, LATENCY_SECONDS[1000])
    results: list[Figures] = []
    for pair in range(PERSISTENT_PAIRS):
        found: dict[bool, Latency] = {}
        for persistent in (False, True) if pair % 2 == 0 else (True, False):
            result = bench.run(replace(load, persistent=persistent))
            latency = result.completed("sessions at 1,000/s").delivery_ms
            assert latency is not None
            found[persistent] = latency
        clean, stored = found[False], found[True]
        figures = percentiles("delivery at 1,000/s, clean sessions", clean)
        figures |= percentiles("delivery at 1,000/s, sessions that outlive it", stored)
        for part in ("p50", "p99"):
            more = 100 * (getattr(stored, part) / getattr(clean, part) - 1)
            figures[figure(f"a session that outlives its connection adds, {part}", "%")] = more
        results.append(figures)
    return results


def measure_subscribe(bench: Bench) -> Figures:
    """New filters subscribed to one after the other; SUBACK says the whole cluster routes them."""
    load = Load(subscribe_to=bench.gateways[:1], probes=200, probe_interval_seconds=0.015)
    return percentiles("new subscription to SUBACK", bench.run(load).suback_ms)


def measure_fan_out(bench: Bench) -> Figures:
    """One publisher, 100 subscribers over all gateways."""
    load = Load(
        publish_to=bench.gateways[:1],
        subscribe_to=bench.gateways,
        publishers=1,
        subscribers=100,
        everyone=True,
        rate=50.0,
        seconds=8.0,
    )
    return percentiles("fan-out 1 to 100 at 50/s", bench.run(load).completed("fan-out").delivery_ms)


def measure_fan_out_1000(bench: Bench) -> Figures:
    """One publisher, 1,000 subscribers with QoS 0 on one gateway, as fast as it goes."""
    gateway = bench.gateways[:1]
    load = Load(
        publish_to=gateway,
        subscribe_to=gateway,
        publishers=1,
        subscribers=1000,
        everyone=True,
        subscribe_qos=0,
        window=FAN_OUT_WINDOW,
        await_delivery=True,
        seconds=5.0,
    )
    result = bench.run(load).completed("fan-out to 1,000")
    name = "fan-out 1 to 1,000, QoS 0"
    return {figure(name, "deliveries/s"): result.delivered_per_second}


def measure_acknowledged(bench: Bench) -> Figures:
    """QoS 1 into one gateway, as fast as 20 connections with 200 unfinished messages each go."""
    load = Load(publish_to=bench.gateways[:1], publishers=20, window=200, seconds=6.0)
    result = bench.run(load)
    if result.acknowledged != result.published:
        missing = result.published - result.acknowledged
        raise OperationalError(f"{missing} messages of {result.published} were not acknowledged")
    return {figure("acknowledged, one gateway", "messages/s"): result.acknowledged_per_second}


Measurement = Callable[[Bench], Sequence[Figures]]
"""One taken several times returns several figures; their medians are shown."""


def times(count: int, take: Callable[[Bench], Figures]) -> Measurement:
    """Take a measurement so often in one run; more where it is short."""
    return lambda bench: [take(bench) for _ in range(count)]


WITHOUT_SYSTEM: Final[Mapping[str, Callable[[], Sequence[Figures]]]] = {
    "codec": lambda: [measure_codec() for _ in range(CODEC_REPETITIONS)],
    "gateway-match": lambda: [measure_gateway_match() for _ in range(CODEC_REPETITIONS)],
    "route-match": lambda: [measure_route_match()],
}
"""Taken before a system is started."""

FIRST_HOUR: Final = "first-hour"
"""Only on request: it takes a quarter of an hour, and stops and starts the system."""

COLD: Final = frozenset({"ready", "idle", FIRST_HOUR})
"""Measurements of a system that has just started."""

MEASUREMENTS: Final[Mapping[str, Measurement]] = {
    "ready": times(1, measure_ready),
    "idle": times(1, measure_idle),
    "latency-100": times(1, measure_latency_100),
    "latency-1000": times(1, measure_latency_1000),
    "tail": times(1, measure_tail),
    "hand-over": times(1, measure_hand_over),
    "persistent-1000": measure_persistent_1000,
    "subscribe": times(1, measure_subscribe),
    "api-publish": times(1, measure_api_publish),
    "live-feed": times(1, measure_live_feed),
    "first-paint": measure_first_paint,
    "connects": times(3, measure_connects),
    "balancer": times(1, measure_balancer),
    "fan-out": times(1, measure_fan_out),
    "fan-out-1000": times(3, measure_fan_out_1000),
    "acknowledged": times(1, measure_acknowledged),
    "sustained": times(1, measure_sustained),
    "budget": measure_budget,
    "rules-latency": measure_rules_latency,
    "rules-300": measure_rules_300,
    "rules-change": times(1, measure_rules_change),
    "memory": times(1, measure_memory),
    "connection-memory": times(3, measure_connection_memory),
    "resume": times(5, measure_resume),
    "resume-crowd": times(3, measure_resume_crowd),
    "rules-500": measure_rules_500,
    "resume-history": measure_resume_history,
    "sql-point": measure_sql_point,
    "sql-day": measure_sql_day,
    "rules-dry-run": measure_rules_dry_run,
    "cold-start": measure_cold_start,
    FIRST_HOUR: measure_first_hour,
}
"""In the order of a run: idle before any load, memory after all of it.

The memory of connections is that of gateways of their own, which come and go. Those that kill
gateways, fill the log and stop the system come at the end.
"""
