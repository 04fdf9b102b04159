"""Spark's checkpoint of a streaming query: which batches are done, and up to where each goes.

`commits/<batch>` says that a batch is done. `offsets/<batch>` is written before it: a line with the
format's version, one of metadata, then one for each source. `metadata` names the query.

Beside them may be what Spark does not know (`streaming.positions`), for its batches may be as long
as a day: per log topic and partition the first offset that is not done, as of a second ago
(`positions.json`, with the boot of the machine) and as of a minute or two ago (`settled.json`).
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from mqlake.durable import write_durably
from mqlake.log.lost_end import Gap
from mqlake.status import boot_id, replace_file

POSITIONS: Final = "positions.json"
SETTLED: Final = "settled.json"

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
    """Return how far the query has certainly come; None when that is not known."""
    return _furthest_known(settled(folder), _read_positions(folder))


def settled(folder: Path) -> Offsets | None:
    """Return how far it has come for all times, also when the machine loses power.

    The log may then have lost what the query has made in the last half minute, or of its own end.
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
    raise ValueError(f"expected offsets of the log in {folder / 'offsets' / str(batch)}")


def write_positions(folder: Path, positions: Offsets) -> None:
    """Note how far the query has certainly come, within a batch too."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / POSITIONS, json.dumps({"boot": boot_id(), "positions": positions}))


def write_settled(folder: Path, positions: Offsets) -> None:
    """Note how far it had come some time ago; that is on the disk when this returns."""
    write_durably(folder / SETTLED, json.dumps({"positions": positions}).encode())


def _read_positions(folder: Path) -> Offsets | None:
    """Return them, unless the machine was started again: the log may have lost what was last."""
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
    """Return `first`, or of each partition what is done when that is more."""
    return {
        log_topic: {
            partition: max(offset, done.get(log_topic, {}).get(partition, 0))
            for partition, offset in partitions.items()
        }
        for log_topic, partitions in first.items()
    }


def furthest(first: Offsets, second: Offsets) -> Offsets:
    """Return the later of two places, partition by partition; of what only one knows, that."""
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
    """Return up to where the last batch goes, whether or not it is done; empty without any."""
    last = _last(folder)
    return {} if last is None else ends_of(folder, last) or {}


def move_past(folder: Path, gaps: Iterable[Gap]) -> None:
    """Let a query that does not run go on behind gaps that it stands in.

    No record is in a gap, so the last batch may as well end behind it: one that is done leaves
    nothing out, one that comes again has the same records. The note of positions goes: it may be of
    what was lost.

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


def add_batch(folder: Path, positions: Offsets) -> None:
    """Let a query without state that does not run go on at positions.

    To its checkpoint comes a batch that ends there and is done, in place of one that is not.

    Raises:
        OSError: The checkpoint cannot be read or written.
        ValueError: It is of another form.
        LookupError: No batch is done.
    """
    done = finished(folder)[0]
    for path in (folder / "offsets").glob("*"):
        if path.name.isdecimal() and int(path.name) > done:
            path.unlink()

    def there(source: dict[str, dict[str, int]]) -> None:
        source |= by_text(positions)

    _write_ends(folder, done + 1, _lines(folder, done), there)
    commit = (folder / "commits" / str(done)).read_bytes()
    write_durably(folder / "commits" / str(done + 1), commit)


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
    write_durably(folder / "offsets" / str(batch), "\n".join(changed).encode())


def _last(folder: Path) -> int | None:
    names = [path.name for path in (folder / "offsets").glob("*")]
    return max((int(name) for name in names if name.isdecimal()), default=None)


def _lines(folder: Path, batch: int) -> list[str]:
    return (folder / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()
