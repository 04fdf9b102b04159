"""bandwidth: a thin line."""

import asyncio

from resilience.faults import register
from resilience.machines.machine import PACKETS
from resilience.machines.switch import CLEAR, Conditions
from resilience.target import Target


@register(
    "bandwidth",
    draw=lambda rng: {"bytes_per_second": rng.choice((20_000, 50_000, 200_000))},
    needs=PACKETS,
)
async def bandwidth(
    target: Target, part: str, *, bytes_per_second: int = 50_000, seconds: float = 4.0
) -> None:
    """All clients share a line of `bytes_per_second` each way, for `seconds`."""
    machine = target.machine(part)
    machine.degrade("both", Conditions(bytes_per_second=bytes_per_second))
    try:
        await asyncio.sleep(seconds)
    finally:
        machine.degrade("both", CLEAR)
