"""The files of an embedded log: how much they take, and where each segment begins.

Kafka keeps a partition in a folder `<log topic>-<partition>`, cut into segments
`<first offset>.log`. Files come and go while they are looked at.
"""

import os
from pathlib import Path
from typing import Final, NamedTuple

_SEGMENT: Final = ".log"
_BLOCK_BYTES: Final = 512


class Segment(NamedTuple):
    first_offset: int
    size_bytes: int


def taken_bytes(log_dir: Path) -> int:
    """Return how much of the disk a log takes, with its indexes and files about to be deleted."""
    taken = 0
    for folder, _, names in os.walk(log_dir):
        for name in names:
            try:
                taken += os.lstat(os.path.join(folder, name)).st_blocks * _BLOCK_BYTES
            except OSError:
                continue
    return taken


def segments(log_dir: Path, log_topic: str, partition: int) -> list[Segment]:
    """Return the segments of a partition, the oldest first.

    Raises:
        OSError: They cannot be looked at.
    """
    found = []
    with os.scandir(log_dir / f"{log_topic}-{partition}") as entries:
        for entry in entries:
            stem, dot, suffix = entry.name.partition(".")
            if dot + suffix != _SEGMENT or not stem.isdecimal():
                continue
            try:
                found.append(Segment(int(stem), entry.stat().st_size))
            except FileNotFoundError:
                continue
    return sorted(found)


def first_kept(found: list[Segment], most_bytes: int) -> int:
    """Return the first offset of the fewest newest segments that hold `most_bytes`.

    All there are when they hold less; so never less is kept than was asked for.
    """
    kept = 0
    for segment in reversed(found):
        kept += segment.size_bytes
        if kept >= most_bytes:
            return segment.first_offset
    return found[0].first_offset if found else 0
