"""reset: every connection breaks with RST."""

from resilience.faults import register
from resilience.machines.machine import PROXY
from resilience.target import Target


@register("reset", needs=PROXY)
async def reset(target: Target, part: str) -> None:
    """RST on all connections to the part; the part itself goes on."""
    target.network(part).reset()
