"""crash: everything is gone at one moment, and no supervisor is left to bring a part back."""

import asyncio

from resilience.faults import register
from resilience.target import Target


@register("crash", draw=lambda rng: {"away_seconds": round(rng.uniform(0, 2), 2)})
async def crash(target: Target, part: str, *, away_seconds: float = 0.5) -> None:
    """SIGKILL to all processes of the machine at once; all is started after `away_seconds`."""
    await target.crash(part)
    await asyncio.sleep(away_seconds)
    await target.start_machine(part)
