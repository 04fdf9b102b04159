"""What is measured: functions from a bench to figures, listed in `MEASUREMENTS`.

The goals are those of a machine with 2 cores that runs everything, the load side included.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from mqlake.bench.loader import Latency, Load, LoadResult, run_load
from mqlake.bench.processes import cpu_percent_of, processes_of, usage_of
from mqlake.errors import OperationalError
from mqlake.status import SystemState

IDLE_SETTLE_SECONDS: Final = 8.0
IDLE_SECONDS: Final = 15.0

# Long enough to hold a boundary between two batches of the router, which stops the flow a moment.
LATENCY_SECONDS: Final = {100: 12.0, 1000: 32.0}

QUIET_PERCENT: Final = 60.0
QUIET_SECONDS: Final = 20.0
"""How long to wait at most until the system has done what an earlier load left it to do."""

SUSTAINED_SECONDS: Final = 10.0
SUSTAINED_STEPS: Final = 4
"""Bisections between nothing and what a closed loop reached: the answer is good to a sixteenth."""
MOST_LATE_SECONDS: Final = 0.5
"""A rate is sustained when the last message came at most so long after the end of publishing."""
LEAST_PACE: Final = 0.98
"""Of the rate asked for: what publishers must have got through."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number: how it is called and what it should be."""

    name: str
    unit: str
    goal: float | None = None
    at_least: bool = False
    """The goal is a least value, not a most."""

    def is_met(self, value: float) -> bool | None:
        """Whether the value reaches the goal; None without one."""
        if self.goal is None:
            return None
        return value >= self.goal if self.at_least else value <= self.goal


GOALS: Final[Mapping[str, tuple[float, bool]]] = {
    "ready": (30, False),
    "idle CPU, whole system": (35, False),
    "memory, whole system": (2098, False),
    "publish to PUBACK at 100/s, p50": (3, False),
    "publish to delivery across gateways at 1,000/s, p50": (8, False),
    "publish to delivery across gateways at 1,000/s, p99": (60, False),
    "new subscription to SUBACK, p50": (10, False),
    "acknowledged, one gateway": (40_000, True),
    "end to end, sustained": (15_000, True),
}

Figures = dict[Figure, float]


@dataclass(frozen=True, slots=True)
class Bench:
    """A running system and the loader to put on it."""

    state: SystemState
    loader: tuple[str, ...]
    ready_seconds: float | None
    """From the command to the line that says ready; None when it ran already."""

    @property
    def gateways(self) -> list[str]:
        return [f"127.0.0.1:{gateway.port}" for gateway in self.state.gateways]

    def run(self, load: Load) -> LoadResult:
        """Wait until the system is quiet, then put a load on it.

        Raises:
            OperationalError: The loader gave up.
        """
        pids = processes_of(self.state)
        deadline = time.monotonic() + QUIET_SECONDS
        while time.monotonic() < deadline:
            if sum(cpu_percent_of(pids, 1.0).values()) < QUIET_PERCENT:
                break
        return run_load(self.loader, load)


def measure_ready(bench: Bench) -> Figures:
    """Time from `up` on a new data directory to ready, caches warm."""
    return {} if bench.ready_seconds is None else {_figure("ready", "s"): bench.ready_seconds}


def measure_idle(bench: Bench) -> Figures:
    """Processor time of each process while nothing is published."""
    time.sleep(IDLE_SETTLE_SECONDS)
    percent = cpu_percent_of(processes_of(bench.state), IDLE_SECONDS)
    figures = {_figure(f"idle CPU, {name}", "% of a core"): used for name, used in percent.items()}
    figures[_figure("idle CPU, whole system", "% of a core")] = sum(percent.values())
    return figures


def measure_memory(bench: Bench) -> Figures:
    """Resident memory of each process, after whatever load was put on before."""
    usage = usage_of(processes_of(bench.state))
    figures = {_figure(f"memory, {name}", "MiB"): use.resident_mib for name, use in usage.items()}
    figures[_figure("memory, whole system", "MiB")] = sum(u.resident_mib for u in usage.values())
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
            figures |= _percentiles(f"publish to PUBACK at {rate:,}/s", result.ack_ms)
        figures |= _percentiles(f"publish to delivery {path} at {rate:,}/s", result.delivery_ms)
    return figures


def measure_subscribe(bench: Bench) -> Figures:
    """New filters subscribed to one after the other; SUBACK says the whole cluster routes them."""
    load = Load(subscribe_to=bench.gateways[:1], probes=200, probe_interval_seconds=0.015)
    return _percentiles("new subscription to SUBACK", bench.run(load).suback_ms)


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
    return _percentiles(
        "fan-out 1 to 100 at 50/s", _complete(bench.run(load), "fan-out").delivery_ms
    )


def measure_acknowledged(bench: Bench) -> Figures:
    """QoS 1 into one gateway, as fast as 20 connections with 200 unfinished messages each go."""
    load = Load(publish_to=bench.gateways[:1], publishers=20, window=200, seconds=6.0)
    result = bench.run(load)
    if result.acknowledged != result.published:
        missing = result.published - result.acknowledged
        raise OperationalError(f"{missing} messages of {result.published} were not acknowledged")
    return {_figure("acknowledged, one gateway", "messages/s"): result.acknowledged_per_second}


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
    return {_figure("end to end, sustained", "messages/s"): sustained}


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


def _figure(name: str, unit: str) -> Figure:
    goal, at_least = GOALS.get(name, (None, False))
    return Figure(name, unit, goal, at_least)


def _percentiles(name: str, latency: Latency | None) -> Figures:
    if latency is None:
        return {}
    return {
        _figure(f"{name}, {part}", "ms"): getattr(latency, part)
        for part in ("p50", "p95", "p99", "max")
    }


MEASUREMENTS: Final[Mapping[str, Callable[[Bench], Figures]]] = {
    "ready": measure_ready,
    "idle": measure_idle,
    "latency-100": measure_latency_100,
    "latency-1000": measure_latency_1000,
    "subscribe": measure_subscribe,
    "fan-out": measure_fan_out,
    "acknowledged": measure_acknowledged,
    "sustained": measure_sustained,
    "memory": measure_memory,
}
"""In the order of a run: idle before any load, memory after all of it."""
