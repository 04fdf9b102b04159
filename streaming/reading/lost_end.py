"""Go on behind the lost end of the log, and tell of records that are known to be lost.

`mqlake.log.lost_end` says when the embedded log loses its end and how it goes on there. Here the
router comes first: it tells of records that all queries had taken, and the lake waits until it has.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from mqlake.clock import Clock
from mqlake.log.lost_end import LEFT_FILE, LogGap, forget_gaps, note_gaps, noted_gaps
from rules.actions.contract import NewRecord
from streaming.log.checkpoints import all_of, move_past, planned
from streaming.tables.events import lost_offsets

REASON: Final = "unsynced"


def pass_over_lost_end(
    checkpoints: Path,
    own: Sequence[str],
    append: Callable[[Sequence[NewRecord]], None],
    clock: Clock,
) -> None:
    """Move positions out of the gaps that are noted; before any query starts.

    Records of it that queries had taken become rows of `drops`; no more of them are known. The
    lake, which waits for that, moves its own checkpoints (`pass_over_what_is_told`). An application
    that is killed meanwhile may tell it again.

    Args:
        checkpoints: Folder of the queries' checkpoints.
        own: Names of the queries that are moved.
        append: Takes the rows.
        clock: When.

    Raises:
        LogError: The log does not take the records: all is as it was.
        OSError: A checkpoint cannot be read or written.
        ValueError: One is damaged.
    """
    gaps = noted_gaps(checkpoints)
    if not gaps:
        return
    folders = all_of(checkpoints)
    records = [record for gap in gaps if (record := _record(gap, folders, clock.now_ms()))]
    if records:
        append(records)
    for query in own:
        move_past(checkpoints / query, gaps)
    note_gaps(checkpoints, gaps, LEFT_FILE)
    forget_gaps(checkpoints)


def pass_over_what_is_told(checkpoints: Path, others: Sequence[str]) -> dict[str, int]:
    """Move checkpoints of the lake out of the gaps that the router has passed over.

    A query that is not at a gap yet has to read up to it first: for Spark the gap consists
    of waiting records.

    Args:
        checkpoints: Folder of the queries' checkpoints.
        others: Names of the queries that are not the lake's.

    Returns:
        By query, how many offsets of gaps are before it: to be added to the limit of a batch.

    Raises:
        OSError: A checkpoint cannot be read or written.
        ValueError: One is damaged.
    """
    gaps = noted_gaps(checkpoints, LEFT_FILE)
    if not gaps:
        return {}
    folders = [folder for folder in all_of(checkpoints) if folder.name not in others]
    for folder in folders:
        move_past(folder, gaps)
    forget_gaps(checkpoints, LEFT_FILE)
    return {folder.name: _before(folder, gaps) for folder in folders}


def _before(folder: Path, gaps: Sequence[LogGap]) -> int:
    positions = planned(folder)
    return sum(
        gap.next - gap.first
        for gap in gaps
        if positions.get(gap.log_topic, {}).get(gap.partition, gap.next) < gap.first
    )


def _record(gap: LogGap, folders: Sequence[Path], now_ms: int) -> NewRecord | None:
    known = [
        (position, folder.name)
        for folder in folders
        if (position := planned(folder).get(gap.log_topic, {}).get(gap.partition)) is not None
        and gap.first < position < gap.next
    ]
    if not known:
        return None
    end, query = max(known)
    detail = (
        f"offsets {gap.first} to {end - 1} of partition {gap.partition} of {gap.log_topic} were "
        f"not on the disk when the machine stopped; {query} had come that far, no more are known"
    )
    return lost_offsets(gap.log_topic, gap.first, end, reason=REASON, detail=detail, now_ms=now_ms)
