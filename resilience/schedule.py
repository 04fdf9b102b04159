"""Faults by chance, repeatable by their seed, and the smallest schedule that still fails."""

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from resilience.faults import FAULTS
from resilience.plan import RandomFaults, Strike

SMALLEST: Final = 0.05
"""Seconds; shorter is not tried."""


def draw(
    wanted: RandomFaults, parts: Sequence[str], nodes: Sequence[str], rng: random.Random
) -> tuple[Strike, ...]:
    """Draw a schedule; one seed gives one schedule.

    Faults of processes strike any part, those of connections and machines the nodes alone: the
    parts to which clients connect.
    """
    strikes = []
    for _ in range(wanted.count):
        name = rng.choice(wanted.names)
        at = round(rng.uniform(0.0, wanted.within_seconds), 2)
        part = rng.choice(nodes if FAULTS[name].needs else parts)
        strikes.append(Strike(name, part, at=at, args=FAULTS[name].draw(rng)))
    return tuple(sorted(strikes, key=lambda strike: strike.at))


async def shrink(
    strikes: Sequence[Strike], fails: Callable[[tuple[Strike, ...]], Awaitable[bool]]
) -> tuple[Strike, ...]:
    """Return a schedule that still fails, from which nothing can be left out or shortened.

    Args:
        strikes: A schedule that fails.
        fails: Runs one; several times if the failure does not come each time.

    Cost: O(n²) runs at worst for n faults, then a few for each duration.
    """
    left = tuple(strikes)
    size = max(1, len(left) // 2)
    while True:
        for start in range(0, len(left), size):
            fewer = left[:start] + left[start + size :]
            if len(fewer) < len(left) and await fails(fewer):
                left = fewer
                break
        else:
            if size == 1:
                break
            size = max(1, size // 2)
            continue
        size = max(1, min(size, len(left) // 2))
    for place, strike in enumerate(left):
        for key in strike.args:
            left = await _shorten(left, place, key, fails)
    return left


async def _shorten(
    strikes: tuple[Strike, ...],
    place: int,
    key: str,
    fails: Callable[[tuple[Strike, ...]], Awaitable[bool]],
) -> tuple[Strike, ...]:
    """Make one duration as short as may be, else halve it as long as the schedule fails."""
    value = strikes[place].args[key]
    if not key.endswith("seconds") or value <= SMALLEST:
        return strikes
    shortest = _with(strikes, place, key, SMALLEST)
    if await fails(shortest):
        return shortest
    while value / 2 > SMALLEST:
        shorter = _with(strikes, place, key, round(value / 2, 3))
        if not await fails(shorter):
            break
        strikes, value = shorter, value / 2
    return strikes


def _with(strikes: tuple[Strike, ...], place: int, key: str, value: float) -> tuple[Strike, ...]:
    strike = replace(strikes[place], args={**strikes[place].args, key: value})
    return (*strikes[:place], strike, *strikes[place + 1 :])
