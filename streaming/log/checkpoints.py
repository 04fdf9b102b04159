"""Checkpoints of streaming queries: the one module that knows where they are, and Spark's format.

Each query has a folder, `<data_dir>/checkpoints/<query>`; those of stateful rules are one level
below (`stateful`). For most it is Spark's checkpoint: `commits/<batch>` says that a batch is done.
`offsets/<batch>` is written before it: a line with the format's version, one of metadata, then one
for each source. `metadata` names the query.

Router and rules keep nothing but positions, and their batches may be as long as a day. So theirs
has positions that Spark does not know (`streaming.log.positions`): per log topic and partition the
first offset that is not done, as of a second ago (`positions.json`, with the boot of the machine)
and as of a minute or two ago (`settled.json`). Spark's checkpoint of them is elsewhere, and new at
each start.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from mqlake.durable import write_durably
from mqlake.log.lost_end import LogGap
from mqlake.processes.status import boot_id, replace_file

POSITIONS: Final = "positions.json"
SETTLED: Final = "settled.json"
RUNS: Final = "stateful"
"""Folder of the queries of stateful rules."""

_COMMITS: Final = "commits"
_OFFSETS: Final = "offsets"
_METADATA: Final = "metadata"
_OF_SPARK: Final = (_COMMITS, _OFFSETS, "sources", "state")

Offsets = dict[str, dict[int, int]]
"""By log topic and partition."""


def checkpoints(data_dir: Path) -> Path:
    """Return the folder of all that is kept of queries."""
    return data_dir.absolute() / "checkpoints"


def checkpoint(data_dir: Path, query: str) -> Path:
    """Return the folder of a query."""
    return checkpoints(data_dir) / query


def all_of(folder: Path) -> list[Path]:
    """Return the folders below `checkpoints` that say how far a query has come."""
    files = (_OFFSETS, POSITIONS, SETTLED)
    found = {path.parent for file in files for path in folder.glob(f"*/{file}")}
    return sorted(found | {path.parent for path in folder.glob(f"{RUNS}/*/{_OFFSETS}")})


def emptied(folder: Path) -> Path:
    """Return a folder of Spark's for a query that begins without it."""
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def forget_batches(folder: Path) -> None:
    """Remove Spark's files of a query that goes by `settled.json` now."""
    for name in _OF_SPARK:
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / _METADATA).unlink(missing_ok=True)


def query_id(folder: Path) -> str:
    """Return the identifier of this query; one with another checkpoint counts from 0 again."""
    identifier: str = json.loads((folder / _METADATA).read_text(encoding="utf-8"))["id"]
    return identifier


def finished(folder: Path) -> list[int]:
    """Return the numbers of the batches that are done, the last one first; of those still noted."""
    names = [path.name for path in (folder / _COMMITS).glob("*")]
    return sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def age_seconds(folder: Path, batch: int) -> float:
    """Return how long ago a batch was done; 0 when it is not."""
    try:
        return time.time() - (folder / _COMMITS / str(batch)).stat().st_mtime
    except OSError:
        return 0.0


def committed(folder: Path) -> Offsets | None:
    """Return how far the query has certainly come; None when that is not known."""
    return _furthest_known(settled(folder), _read_positions(folder))


def settled(folder: Path) -> Offsets | None:
    """Return how far it has come for all times, also when the machine loses power.

    The log may then have lost the query's output of the last half minute, or its own end.
    """
    return _furthest_known(last_batch(folder), _read_settled(folder))


def last_batch(folder: Path) -> Offsets | None:
    """Return how far its last finished batch goes; None without one."""
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
    raise ValueError(f"expected offsets of the log in {folder / _OFFSETS / str(batch)}")


def write_positions(folder: Path, positions: Offsets) -> None:
    """Note how far the query has certainly come, within a batch too."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / POSITIONS, json.dumps({"boot": boot_id(), "positions": positions}))


def write_settled(folder: Path, positions: Offsets) -> None:
    """Note how far it had come some time ago; that is on the disk when this returns."""
    write_durably(folder / SETTLED, json.dumps({"positions": positions}).encode())


def _read_positions(folder: Path) -> Offsets | None:
    """Return them, unless the machine was started again: the log may have lost its last records."""
    return _read(folder / POSITIONS, {"boot": boot_id()})


def _read_settled(folder: Path) -> Offsets | None:
    return _read(folder / SETTLED, {})


def _read(path: Path, wanted: Mapping[str, str]) -> Offsets | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        has_all = all(found[name] == value for name, value in wanted.items())
        return by_number(found["positions"]) if has_all else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


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


def by_text(ends: Offsets) -> dict[str, dict[str, int]]:
    """Return offsets as Spark writes them."""
    return {
        log_topic: {str(partition): offset for partition, offset in partitions.items()}
        for log_topic, partitions in ends.items()
    }


def later(first: Offsets, done: Offsets) -> Offsets:
    """Return `first`, or of each partition the offset in `done` when that is more."""
    return {
        log_topic: {
            partition: max(offset, done.get(log_topic, {}).get(partition, 0))
            for partition, offset in partitions.items()
        }
        for log_topic, partitions in first.items()
    }


def with_added(first: Offsets, known: Offsets) -> Offsets:
    """Return `first`, and of its log topics from its beginning each partition that it lacks."""
    return {
        log_topic: dict.fromkeys(known.get(log_topic, {}), 0) | partitions
        for log_topic, partitions in first.items()
    }


def furthest(first: Offsets, second: Offsets) -> Offsets:
    """Return the later of two positions, partition by partition, also those in only one."""
    return {
        log_topic: {
            partition: max(
                first.get(log_topic, {}).get(partition, 0),
                second.get(log_topic, {}).get(partition, 0),
            )
            for partition in {**first.get(log_topic, {}), **second.get(log_topic, {})}
        }
        for log_topic in {**first, **second}
    }


def _furthest_known(first: Offsets | None, second: Offsets | None) -> Offsets | None:
    return first or second if first is None or second is None else furthest(first, second)


def planned(folder: Path) -> Offsets:
    """Return the furthest that it may have come, also by a batch that is not done."""
    last = _last(folder)
    batch = None if last is None else ends_of(folder, last)
    return _furthest_known(batch, settled(folder)) or {}


def move_past(folder: Path, gaps: Iterable[LogGap]) -> None:
    """Let a query that does not run go on behind gaps that it stands in.

    No record is in a gap, so the last batch may as well end behind it: one that is done leaves
    nothing out, one that comes again has the same records. The note of positions goes: it may be of
    lost records.

    Raises:
        OSError: The checkpoint cannot be read or written.
        ValueError: It is of another form.
    """
    (folder / POSITIONS).unlink(missing_ok=True)
    gaps = list(gaps)

    def behind(source: dict[str, dict[str, int]]) -> None:
        for gap in gaps:
            offsets = source.get(gap.log_topic, {})
            if gap.first <= offsets.get(str(gap.partition), -1) < gap.next:
                offsets[str(gap.partition)] = gap.next

    noted = _read_settled(folder)
    if noted is not None:
        source = by_text(noted)
        behind(source)
        write_settled(folder, by_number(source))
    last = _last(folder)
    if last is not None:
        _write_ends(folder, last, _lines(folder, last), behind)


def _write_ends(
    folder: Path, batch: int, lines: list[str], change: Callable[[dict[str, dict[str, int]]], None]
) -> None:
    """Write up to where a batch goes: as these lines say, with each source of the log changed."""
    changed = lines[:2]
    for line in lines[2:]:
        source = json.loads(line)
        # A source that is not the log counts seconds.
        if isinstance(source, dict):
            change(source)
            line = json.dumps(source, separators=(",", ":"))
        changed.append(line)
    write_durably(folder / _OFFSETS / str(batch), "\n".join(changed).encode())


def _last(folder: Path) -> int | None:
    names = [path.name for path in (folder / _OFFSETS).glob("*")]
    return max((int(name) for name in names if name.isdecimal()), default=None)


def _lines(folder: Path, batch: int) -> list[str]:
    return (folder / _OFFSETS / str(batch)).read_text(encoding="utf-8").splitlines()
