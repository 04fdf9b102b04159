"""freeze: a suspended machine, or a guest that its hypervisor has stopped, and that goes on."""

import asyncio

from resilience.faults import register
from resilience.machines.machine import CLOCK
from resilience.target import Target


@register("freeze", draw=lambda rng: {"seconds": rng.choice((2.0, 8.0, 20.0))}, needs=CLOCK)
async def freeze(target: Target, part: str, *, seconds: float = 15.0) -> None:
    """All of the part's machine stops for `seconds`, and its monotonic clocks stand still."""
    await target.freeze(part)
    try:
        await asyncio.sleep(seconds)
    finally:
        await target.thaw(part)
