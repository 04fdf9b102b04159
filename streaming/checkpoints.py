"""Spark's checkpoint of a streaming query: which batches are done, and up to where each goes.

`commits/<batch>` says that a batch is done. `offsets/<batch>` is written before it: a line with the
format's version, one of metadata, then one for each source. `metadata` names the query.
"""

import json
from collections.abc import Mapping
from pathlib import Path

Offsets = dict[str, dict[int, int]]
"""By log topic and partition."""


def query_id(folder: Path) -> str:
    """Return what tells this query from one with another checkpoint, which counts from 0 again."""
    identifier: str = json.loads((folder / "metadata").read_text(encoding="utf-8"))["id"]
    return identifier


def finished(folder: Path) -> list[int]:
    """Return the numbers of the batches that are done, the last one first; of those still noted."""
    names = [path.name for path in (folder / "commits").glob("*")]
    return sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def committed(folder: Path) -> Offsets | None:
    """Return how far the query has certainly come; None without a finished batch."""
    found = (ends for batch in finished(folder) if (ends := ends_of(folder, batch)) is not None)
    return next(found, None)


def ends_of(folder: Path, batch: int) -> Offsets | None:
    """Return up to where a batch goes; None when that is not noted."""
    try:
        return read_ends(folder, batch)
    except (OSError, ValueError):
        return None


def read_ends(folder: Path, batch: int) -> Offsets:
    """Return up to where a batch goes in the log: the first offsets that are not in it.

    Raises:
        OSError: That cannot be read.
        ValueError: It is not noted there.
    """
    # A source that is not the log counts seconds.
    for source in map(json.loads, _lines(folder, batch)[2:]):
        if isinstance(source, dict):
            return by_number(source)
    raise ValueError(f"expected offsets of the log in {folder / 'offsets' / str(batch)}")


def watermark_ms(folder: Path) -> int:
    """Return the watermark of the last finished batch; 0 before any."""
    try:
        return int(json.loads(_lines(folder, finished(folder)[0])[1])["batchWatermarkMs"])
    except (OSError, ValueError, IndexError, KeyError):
        return 0


def by_number(ends: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Return offsets as Spark writes them, with partitions as numbers."""
    return {
        log_topic: {int(partition): offset for partition, offset in partitions.items()}
        for log_topic, partitions in ends.items()
    }


def later(first: Offsets, done: Offsets) -> Offsets:
    """Return `first`, or of each partition what is done when that is more."""
    return {
        log_topic: {
            partition: max(offset, done.get(log_topic, {}).get(partition, 0))
            for partition, offset in partitions.items()
        }
        for log_topic, partitions in first.items()
    }


def _lines(folder: Path, batch: int) -> list[str]:
    return (folder / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()
