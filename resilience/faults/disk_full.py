"""disk-full: no block is free."""

import asyncio

from resilience.faults import register
from resilience.machines.machine import DISK
from resilience.target import Target


@register("disk-full", draw=lambda rng: {"seconds": round(rng.uniform(1, 5), 2)}, needs=DISK)
async def disk_full(target: Target, part: str, *, seconds: float = 4.0) -> None:
    """The disk of the part has no free block, for `seconds`; the part is then restarted."""
    machine = target.machine(part)
    machine.fill_disk()
    try:
        await asyncio.sleep(seconds)
    finally:
        machine.empty_disk()
    await target.terminate(part)
    await target.launch(part)
