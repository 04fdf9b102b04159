"""clock-step: the clock is set."""

import asyncio

from resilience.faults import register
from resilience.machines.machine import CLOCK
from resilience.target import Target


@register(
    "clock-step",
    draw=lambda rng: {"by_seconds": rng.choice((-300.0, -5.0, 5.0, 300.0))},
    needs=CLOCK,
)
async def clock_step(
    target: Target, part: str, *, by_seconds: float = 60.0, seconds: float = 4.0
) -> None:
    """The wall clock of the part's machine steps `by_seconds`, and back after `seconds`."""
    machine = target.machine(part)
    machine.set_clock(by_seconds)
    try:
        await asyncio.sleep(seconds)
    finally:
        machine.set_clock(0.0)
