"""What is measured: functions from a bench to figures, listed in `MEASUREMENTS`."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from mqlake.bench.codec import measure_codec
from mqlake.bench.connections import measure_connection_memory, measure_connects
from mqlake.bench.figures import Figures, figure, percentiles
from mqlake.bench.loader import Load, LoadResult
from mqlake.bench.processes import cpu_percent_of, processes_of, usage_of
from mqlake.bench.system import Bench
from mqlake.errors import OperationalError

IDLE_SETTLE_SECONDS: Final = 8.0
IDLE_SECONDS: Final = 15.0

# Long enough to hold a boundary between two batches of the router, which stops the flow a moment.
LATENCY_SECONDS: Final = {100: 12.0, 1000: 32.0}

FAN_OUT_WINDOW: Final = 50
"""Messages on their way at once: enough to keep router and gateway busy."""

SUSTAINED_SECONDS: Final = 10.0
SUSTAINED_STEPS: Final = 4
"""Bisections between nothing and what a closed loop reached: the answer is good to a sixteenth."""
MOST_LATE_SECONDS: Final = 0.5
"""A rate is sustained when the last message came at most so long after the end of publishing."""
LEAST_PACE: Final = 0.98
"""Of the rate asked for: what publishers must have got through."""


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
    """Resident memory of each process, after whatever load was put on before."""
    usage = usage_of(processes_of(bench.state))
    figures = {figure(f"memory, {name}", "MiB"): use.resident_mib for name, use in usage.items()}
    figures[figure("memory, whole system", "MiB")] = sum(u.resident_mib for u in usage.values())
    return figures


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
        load = Load(
            publish_to=gateways[:1],
            subscribe_to=[subscribe_to],
            publishers=10,
            subscribers=2,
            rate=float(rate),
            seconds=LATENCY_SECONDS[rate],
            warmup_seconds=2.0,
        )
        result = _complete(bench.run(load), f"{rate}/s {path}")
        if subscribe_to == gateways[0]:
            figures |= percentiles(f"publish to PUBACK at {rate:,}/s", result.ack_ms)
        figures |= percentiles(f"publish to delivery {path} at {rate:,}/s", result.delivery_ms)
    return figures


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
    return percentiles(
        "fan-out 1 to 100 at 50/s", _complete(bench.run(load), "fan-out").delivery_ms
    )


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
    result = _complete(bench.run(load), "fan-out to 1,000")
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


def measure_sustained(bench: Bench) -> Figures:
    """Most messages a second from publisher to subscriber across gateways, none lost, none late.

    A closed loop, in which each publisher waits for deliveries, finds about what is possible; lower
    rates are then tried in an open loop, which proves one.
    """
    flow = Load(
        publish_to=bench.gateways[:1],
        subscribe_to=bench.gateways[-1:],
        publishers=20,
        subscribers=4,
        seconds=SUSTAINED_SECONDS,
    )
    closed = bench.run(replace(flow, rate=0.0, window=200, await_delivery=True))
    low, high, sustained = 0.0, closed.delivered_per_second, 0.0
    for _ in range(SUSTAINED_STEPS if high else 0):
        rate = (low + high) / 2
        reached = _sustained(bench, replace(flow, rate=rate))
        if reached:
            low, sustained = rate, reached
        else:
            high = rate
    return {figure("end to end, sustained", "messages/s"): sustained}


def _sustained(bench: Bench, load: Load) -> float:
    """Return the messages a second until the last had come; 0 when this rate is not sustained."""
    result = bench.run(load)
    publishing = load.warmup_seconds + load.seconds
    if (
        not result.is_complete
        or result.published < LEAST_PACE * load.rate * publishing
        or result.last_delivery_seconds_after_end > MOST_LATE_SECONDS
    ):
        return 0.0
    return result.delivered / (publishing + result.last_delivery_seconds_after_end)


def _complete(result: LoadResult, what: str) -> LoadResult:
    if not result.is_complete:
        raise OperationalError(
            f"{what}: of {result.expected} messages {result.lost} were lost, {result.duplicated} "
            f"came twice, {result.out_of_order} out of order, "
            f"{result.published - result.acknowledged} were not acknowledged"
        )
    return result


@dataclass(frozen=True, slots=True)
class Measurement:
    """One thing to measure, and how often in one run."""

    take: Callable[[Bench], Figures]
    repetitions: int = 1
    """More where it is short; the figures are medians."""


WITHOUT_SYSTEM: Final[Mapping[str, Callable[[], Figures]]] = {"codec": measure_codec}
"""Taken before a system is started."""
REPETITIONS_WITHOUT_SYSTEM: Final = 5

MEASUREMENTS: Final[Mapping[str, Measurement]] = {
    "ready": Measurement(measure_ready),
    "idle": Measurement(measure_idle),
    "latency-100": Measurement(measure_latency_100),
    "latency-1000": Measurement(measure_latency_1000),
    "subscribe": Measurement(measure_subscribe),
    "connects": Measurement(measure_connects, repetitions=3),
    "fan-out": Measurement(measure_fan_out),
    "fan-out-1000": Measurement(measure_fan_out_1000, repetitions=3),
    "acknowledged": Measurement(measure_acknowledged),
    "sustained": Measurement(measure_sustained),
    "memory": Measurement(measure_memory),
    "connection-memory": Measurement(measure_connection_memory, repetitions=3),
}
"""In the order of a run: idle before any load, memory after all of it.

The memory of connections is that of gateways of their own, which come and go at the end.
"""
