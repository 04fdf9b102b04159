"""file-limit: the part alone has no room left, as on a full disk."""

from resilience.faults import register
from resilience.target import Target


@register("file-limit")
async def file_limit(target: Target, part: str, *, within_seconds: float = 30.0) -> None:
    """No file of the part takes a byte more (RLIMIT_FSIZE); it has to end, and is started again."""
    await target.fill_files(part, within_seconds)
    await target.launch(part)
