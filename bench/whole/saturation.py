"""As many messages as go from publishers to subscribers across gateways, when Java is warm.

Java's compilers take a fifth of two processors in the first minutes of full load, and code that is
not compiled takes more still. A system runs for months, so the figures are those of a warm one.
"""

from dataclasses import replace
from typing import Final

from bench.load.loader import Load
from bench.results.figures import Figures, figure
from bench.systems.system import Bench

LOOP_SECONDS: Final = 10.0
LOOPS_WITHOUT_GAIN: Final = 3
"""The system is warm when this number of loops in a row was not faster than one before."""
MOST_LOOPS: Final = 24
HIGHEST_RATE: Final = 1.25
"""Highest rate that is tried, in rates of a closed loop."""
STEPS: Final = 6
"""Bisections between nothing and that: the answer is good to a 50th of the closed loop's rate."""
MOST_LATE_SECONDS: Final = 0.5
"""A rate is sustained when the last message came at most so long after the end of publishing."""
LEAST_PACE: Final = 0.98
"""Part of the rate asked for that publishers must have reached."""


def closed_loop(bench: Bench) -> Load:
    """Return a load in which each of 20 publishers has 200 messages on their way, QoS 1."""
    return Load(
        publish_to=bench.gateways[:1],
        subscribe_to=bench.gateways[-1:],
        publishers=20,
        subscribers=4,
        seconds=LOOP_SECONDS,
        window=200,
        await_delivery=True,
    )


def open_loop(loop: Load, rate: float) -> Load:
    """Return the same load, published at `rate` messages a second whatever is delivered."""
    return replace(loop, rate=rate, await_delivery=False)


def rate_when_warm(bench: Bench, loop: Load) -> float:
    """Run closed loops until they get no faster; return the messages a second of the fastest.

    0 when none was delivered.
    """
    best, without_gain = 0.0, 0
    for _ in range(MOST_LOOPS):
        bench.await_quiet()
        rate = bench.run(loop).delivered_per_second
        without_gain = 0 if rate > best else without_gain + 1
        best = max(best, rate)
        if without_gain == LOOPS_WITHOUT_GAIN:
            break
    return best


def measure_sustained(bench: Bench) -> Figures:
    """Most messages a second from publisher to subscriber across gateways, none lost, none late.

    A closed loop, in which each publisher waits for deliveries, finds about the rate that is
    possible; lower rates are then tried in an open loop, which proves one.
    """
    loop = closed_loop(bench)
    low, high, sustained = 0.0, HIGHEST_RATE * rate_when_warm(bench, loop), 0.0
    for _ in range(STEPS if high else 0):
        rate = (low + high) / 2
        reached = _sustained(bench, open_loop(loop, rate))
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
