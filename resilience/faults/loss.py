"""loss: packets vanish, TCP sends them again."""

import asyncio

from resilience.faults import register
from resilience.machines.machine import PACKETS
from resilience.machines.switch import CLEAR, Conditions
from resilience.target import Target


@register(
    "loss",
    draw=lambda rng: {"percent": rng.choice((1, 5, 15)), "seconds": round(rng.uniform(1, 5), 2)},
    needs=PACKETS,
)
async def loss(
    target: Target, part: str, *, percent: float = 10.0, seconds: float = 5.0, way: str = "both"
) -> None:
    """`percent` of the packets are lost, `way` in, out or both, for `seconds`."""
    machine = target.machine(part)
    machine.degrade(way, Conditions(loss=percent / 100))
    try:
        await asyncio.sleep(seconds)
    finally:
        machine.degrade(way, CLEAR)
