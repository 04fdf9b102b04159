"""doubled-name: a part that runs already is started once more."""

from resilience.faults import register
from resilience.target import Target


@register("doubled-name")
async def doubled_name(target: Target, part: str) -> None:
    """A second process with the name of the part starts; it has to end, and to say why."""
    await target.start_second(part)
