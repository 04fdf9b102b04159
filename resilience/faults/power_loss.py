"""power-loss: the machine is off, and what was not synced is gone."""

import asyncio

from resilience.faults import register
from resilience.machines.machine import DISK
from resilience.target import Target


@register(
    "power-loss",
    draw=lambda rng: {"away_seconds": round(rng.uniform(0, 2), 2)},
    needs=DISK,
)
async def power_loss(target: Target, part: str, *, away_seconds: float = 0.5) -> None:
    """The machine of the part loses power, and with it what was not synced; it comes back."""
    await target.lose_power(part)
    await asyncio.sleep(away_seconds)
    await target.start_machine(part)
