"""truncate: the end of a closed file is not there any more."""

import os

from resilience.errors import TargetError
from resilience.faults import register
from resilience.target import Target


@register("truncate", draw=lambda rng: {"share": round(rng.uniform(0.01, 0.5), 3)}, spoils=True)
async def truncate(target: Target, part: str, *, share: float = 0.1) -> None:
    """SIGTERM; the newest closed file of the part's log loses this `share` of its end meanwhile.

    After a SIGKILL Kafka looks through what it has written of late, and cuts all behind the damage.
    """
    await target.terminate(part)
    try:
        files = [path for path in target.closed_files(part) if path.stat().st_size]
        if not files:
            raise TargetError(f"{part} has no closed file yet")
        os.truncate(files[-1], int(files[-1].stat().st_size * (1 - share)))
    finally:
        await target.launch(part)
