"""term: SIGTERM, and back after a while."""

import asyncio

from resilience.faults import register
from resilience.target import Target


@register("term", draw=lambda rng: {"away_seconds": round(rng.uniform(0.5, 2), 2)})
async def term(target: Target, part: str, *, away_seconds: float = 0.5) -> None:
    """SIGTERM; the part is started again `away_seconds` after its end."""
    await target.terminate(part)
    await asyncio.sleep(away_seconds)
    await target.launch(part)
