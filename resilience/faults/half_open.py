"""half-open: the network swallows everything, and no side gets an error."""

import asyncio

from resilience.faults import register
from resilience.machines.machine import PROXY
from resilience.target import Target


@register(
    "half-open",
    draw=lambda rng: {"seconds": round(rng.uniform(0.5, 4), 2)},
    needs=PROXY,
)
async def half_open(target: Target, part: str, *, seconds: float = 4.0) -> None:
    """Nothing goes through for `seconds`; then all held connections break."""
    network = target.network(part)
    network.hold(held=True)
    try:
        await asyncio.sleep(seconds)
    finally:
        network.reset()
        network.hold(held=False)
