"""log-full: the log is as large as the target lets it be."""

import asyncio

from resilience.faults import register
from resilience.target import Target


@register("log-full")
async def log_full(target: Target, part: str, *, seconds: float = 6.0) -> None:
    """The log of the part is full by its own limit, for `seconds`; the part keeps running."""
    await target.fill_log(part)
    try:
        await asyncio.sleep(seconds)
    finally:
        await target.empty_log(part)
