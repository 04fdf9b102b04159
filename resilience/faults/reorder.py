"""reorder: packets overtake each other."""

import asyncio

from resilience.faults import register
from resilience.machines.machine import PACKETS
from resilience.machines.switch import CLEAR, Conditions
from resilience.target import Target


@register(
    "reorder",
    draw=lambda rng: {
        "percent": rng.choice((5, 25, 50)),
        "delay_seconds": round(rng.uniform(0.005, 0.05), 3),
    },
    needs=PACKETS,
)
async def reorder(
    target: Target,
    part: str,
    *,
    percent: float = 25.0,
    delay_seconds: float = 0.02,
    seconds: float = 4.0,
) -> None:
    """Packets take `delay_seconds` each way, but `percent` of them none, for `seconds`."""
    machine = target.machine(part)
    machine.degrade("both", Conditions(delay_seconds=delay_seconds, reorder=percent / 100))
    try:
        await asyncio.sleep(seconds)
    finally:
        machine.degrade("both", CLEAR)
