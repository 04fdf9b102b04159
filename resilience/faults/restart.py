"""restart: as an administrator does it."""

from resilience.faults import register
from resilience.target import Target


@register("restart")
async def restart(target: Target, part: str) -> None:
    """SIGTERM, and started again as soon as it has ended."""
    await target.terminate(part)
    await target.launch(part)
