"""pause: the process stands still and goes on, as in a long collection or on a busy host."""

import asyncio

from resilience.faults import register
from resilience.target import Target


@register("pause", draw=lambda rng: {"seconds": round(rng.uniform(0.5, 5), 2)})
async def pause(target: Target, part: str, *, seconds: float = 5.0) -> None:
    """SIGSTOP for `seconds`, then SIGCONT."""
    await target.pause(part)
    try:
        await asyncio.sleep(seconds)
    finally:
        await target.resume(part)
