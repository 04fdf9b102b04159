"""Faults by chance, repeatable by their seed, and the smallest schedule that still fails."""

import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from resilience.faults import FAULTS
from resilience.plan import RandomFaults, Strike

SMALLEST: Final = 0.05
"""Seconds; shorter is not tried."""


def draw(wanted: RandomFaults, parts: Sequence[str], rng: random.Random) -> tuple[Strike, ...]:
    """Draw a schedule; one seed gives one schedule."""
    strikes = []
    for _ in range(wanted.count):
        name = rng.choice(wanted.names)
        at = round(rng.uniform(0.0, wanted.within_seconds), 2)
        strikes.append(Strike(name, rng.choice(parts), at=at, args=FAULTS[name].draw(rng)))
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
    for place in range(len(left)):
        for shorter in _shorter(left[place]):
            tried = (*left[:place], shorter, *left[place + 1 :])
            if await fails(tried):
                left = tried
    return left


def _shorter(strike: Strike) -> Iterable[Strike]:
    """Yield the fault with each duration at its shortest, then halved."""
    for key, value in strike.args.items():
        if key.endswith("seconds") and value > SMALLEST:
            for shorter in (SMALLEST, value / 2):
                yield replace(strike, args={**strike.args, key: round(shorter, 3)})
