"""delay: a long way to the broker."""

import asyncio

from resilience.faults import register
from resilience.machines.machine import PROXY
from resilience.target import Target


@register(
    "delay",
    draw=lambda rng: {"delay_seconds": round(rng.uniform(0.02, 0.3), 3)},
    needs=PROXY,
)
async def delay(
    target: Target, part: str, *, seconds: float = 4.0, delay_seconds: float = 0.1
) -> None:
    """Every byte takes `delay_seconds` longer each way, for `seconds`."""
    network = target.network(part)
    network.delay(delay_seconds)
    try:
        await asyncio.sleep(seconds)
    finally:
        network.delay(0.0)
