"""bit-flip: a disk that gives back something else than it was given."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from resilience.errors import TargetError
from resilience.faults import register
from resilience.target import Target

DEEP: Final = 1_000
"""Bytes behind the beginning of a message: its payload, if it is no small one."""


@register("bit-flip", draw=lambda rng: {"place": round(rng.random(), 6)}, spoils=True)
async def bit_flip(target: Target, part: str, *, place: float = 0.5, of: str = "") -> None:
    """One bit of a closed file of the part's log is another one; `place` 0 to 1 says where.

    With `of` it is in a message of the client of that name, in the newest file that has any. A part
    that writes its files again is killed before, and started again.
    """
    is_killed = target.rewrites(part)
    if is_killed:
        await target.kill(part)
    files = [path for path in target.closed_files(part) if path.stat().st_size]
    if not files:
        raise TargetError(f"{part} has no closed file yet")
    if of:
        _flip(*_in_message(files, f"{of}/", place))
    else:
        path = files[min(len(files) - 1, int(place * len(files)))]
        _flip(path, int(place * path.stat().st_size) % path.stat().st_size)
    if is_killed:
        await target.launch(part)


def _in_message(files: Sequence[Path], begin: str, place: float) -> tuple[Path, int]:
    """Return a file, and a place inside the payload of one of the messages that begin so."""
    word = begin.encode()
    for path in reversed(files):
        data = path.read_bytes()
        found = data.find(word, int(place * len(data)))
        if found < 0:
            found = data.rfind(word)
        if 0 <= found < len(data) - DEEP:
            return path, found + DEEP
    raise TargetError(f"no closed file has a message of {begin.rstrip('/')}")


def _flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ (1 << at % 8)]))
