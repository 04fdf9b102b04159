"""Go on behind what the log has lost of its end, and tell what is known to be lost.

`mqlake.log.lost_end` says when the embedded log loses its end and what is done about it there.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from mqlake.clock import Clock
from mqlake.log.lost_end import Gap, forget_gaps, noted_gaps
from rules.actions.contract import Append
from streaming.checkpoints import move_past, planned
from streaming.events import lost_offsets

REASON: Final = "unsynced"


def pass_over_lost_end(
    checkpoints: Path, append: Callable[[Sequence[Append]], None], clock: Clock
) -> dict[str, int]:
    """Move checkpoints out of the gaps that are noted; before any query starts.

    What queries had taken of it is told as rows of `drops`; nobody knows of more. An application
    that is killed meanwhile may tell it again. A query that is not at a gap yet has to read up to
    it first: for Spark the gap is so many records that are waiting.

    Returns:
        By query, how many offsets of gaps are before it: to be added to what a batch may take.

    Raises:
        LogError: The log does not take the records: all is as it was.
        OSError: A checkpoint cannot be read or written.
        ValueError: One is damaged.
    """
    gaps = noted_gaps(checkpoints)
    if not gaps:
        return {}
    folders = list(_queries(checkpoints))
    records = [record for gap in gaps if (record := _record(gap, folders, clock.now_ms()))]
    if records:
        append(records)
    for folder in folders:
        move_past(folder, gaps)
    forget_gaps(checkpoints)
    return {folder.name: _before(folder, gaps) for folder in folders}


def _before(folder: Path, gaps: Sequence[Gap]) -> int:
    places = planned(folder)
    return sum(
        gap.next - gap.first
        for gap in gaps
        if places.get(gap.log_topic, {}).get(gap.partition, gap.next) < gap.first
    )


def _queries(checkpoints: Path) -> Iterator[Path]:
    for pattern in ("*/offsets", "*/*/offsets"):
        for offsets in checkpoints.glob(pattern):
            yield offsets.parent


def _record(gap: Gap, folders: Sequence[Path], now_ms: int) -> Append | None:
    known = [
        (place, folder.name)
        for folder in folders
        if (place := planned(folder).get(gap.log_topic, {}).get(gap.partition)) is not None
        and gap.first < place < gap.next
    ]
    if not known:
        return None
    end, query = max(known)
    detail = (
        f"offsets {gap.first} to {end - 1} of partition {gap.partition} of {gap.log_topic} were "
        f"not on the disk when the machine stopped; {query} had come that far, nobody knows of more"
    )
    return lost_offsets(gap.log_topic, gap.first, end, reason=REASON, detail=detail, now_ms=now_ms)
