"""stutter: the process gets the processor now and then, as on a host that is far too busy."""

import asyncio

from resilience.faults import register
from resilience.target import Target


@register("stutter", draw=lambda rng: {"stop_seconds": round(rng.uniform(0.1, 0.5), 2)})
async def stutter(
    target: Target, part: str, *, stop_seconds: float = 0.3, seconds: float = 10.0
) -> None:
    """SIGSTOP for `stop_seconds` and SIGCONT, again and again, for `seconds`."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        await target.pause(part)
        try:
            await asyncio.sleep(stop_seconds)
        finally:
            await target.resume(part)
        await asyncio.sleep(stop_seconds / 2)
