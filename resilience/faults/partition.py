"""partition: no packet gets through, one way or both."""

import asyncio

from resilience.faults import register
from resilience.machines.machine import PACKETS
from resilience.machines.switch import CLEAR, Conditions
from resilience.target import Target


@register(
    "partition",
    draw=lambda rng: {
        "seconds": round(rng.uniform(0.5, 5), 2),
        "way": rng.choice(("both", "in", "out")),
    },
    needs=PACKETS,
)
async def partition(target: Target, part: str, *, seconds: float = 5.0, way: str = "both") -> None:
    """No packet reaches the part (`way` in), leaves it (out) or both, for so many `seconds`."""
    machine = target.machine(part)
    machine.degrade(way, Conditions(loss=1.0))
    try:
        await asyncio.sleep(seconds)
    finally:
        machine.degrade(way, CLEAR)
