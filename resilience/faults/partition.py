"""partition: no packet gets through, one way or both."""

import asyncio
from collections.abc import Sequence

from resilience.errors import TargetError
from resilience.faults import register
from resilience.machines.machine import PACKETS
from resilience.machines.switch import CLEAR, CLIENTS, Conditions
from resilience.target import Target


@register(
    "partition",
    draw=lambda rng: {
        "seconds": round(rng.uniform(0.5, 5), 2),
        "way": rng.choice(("both", "in", "out")),
    },
    needs=PACKETS,
)
async def partition(
    target: Target,
    part: str,
    *,
    seconds: float = 5.0,
    way: str = "both",
    peers: Sequence[str] = (),
) -> None:
    """No packet reaches the part (`way` in), leaves it (out) or both, for `seconds`.

    It is cut from the clients, or if there are `peers`, from their machines alone.
    """
    machine = target.machine(part)
    others = [target.machine(peer).name for peer in peers] or [CLIENTS]
    if machine.name in others:
        raise TargetError(f"{part} is on one machine with one of {', '.join(peers)}")
    for other in others:
        machine.degrade(way, Conditions(loss=1.0), other)
    try:
        await asyncio.sleep(seconds)
    finally:
        for other in others:
            machine.degrade(way, CLEAR, other)
