"""bit-flip: a disk that gives back something else than it was given."""

from resilience.errors import TargetError
from resilience.faults import register
from resilience.target import Target


@register("bit-flip", draw=lambda rng: {"place": round(rng.random(), 6)})
async def bit_flip(target: Target, part: str, *, place: float = 0.5) -> None:
    """One bit of a closed file of the part's log is another one; `place` 0 to 1 says where."""
    files = [path for path in target.closed_files(part) if path.stat().st_size]
    if not files:
        raise TargetError(f"{part} has no closed file yet")
    path = files[min(len(files) - 1, int(place * len(files)))]
    at = int(place * path.stat().st_size) % path.stat().st_size
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ (1 << at % 8)]))
