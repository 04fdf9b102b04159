"""kill: SIGKILL, and back after a while."""

import asyncio

from resilience.faults import register
from resilience.target import Target


@register("kill", draw=lambda rng: {"away_seconds": round(rng.uniform(0, 2), 2)})
async def kill(target: Target, part: str, *, away_seconds: float = 0.5) -> None:
    """SIGKILL; the part is started again after `away_seconds`."""
    await target.kill(part)
    await asyncio.sleep(away_seconds)
    await target.launch(part)
