"""slow-reader: the clients read slowly, so that the broker's buffers fill."""

import asyncio

from resilience.faults import register
from resilience.machines.machine import PROXY
from resilience.target import Target


@register(
    "slow-reader",
    draw=lambda rng: {"seconds": round(rng.uniform(0.5, 4), 2)},
    needs=PROXY,
)
async def slow_reader(
    target: Target, part: str, *, seconds: float = 4.0, bytes_per_second: int = 2_000
) -> None:
    """Clients get at most `bytes_per_second` each, for `seconds`."""
    network = target.network(part)
    network.slow(bytes_per_second)
    try:
        await asyncio.sleep(seconds)
    finally:
        network.slow(None)
