"""outlive: a node is away for longer than what waits for it is kept."""

import asyncio

from resilience.faults import register
from resilience.target import Target


@register("outlive", draw=lambda rng: {"away_seconds": round(rng.uniform(3, 20), 2)})
async def outlive(
    target: Target, part: str, *, after_seconds: float = 2.0, away_seconds: float = 16.0
) -> None:
    """SIGKILL; what waits for it goes after `after_seconds`; it is back after `away_seconds`.

    A target that does not say how (`expire` of the part) keeps it, or keeps it nowhere else.
    """
    await target.kill(part)
    await asyncio.sleep(after_seconds)
    await target.expire(part)
    await asyncio.sleep(max(0.0, away_seconds - after_seconds))
    await target.launch(part)
