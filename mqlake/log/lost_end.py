"""After a crash the embedded log gives no offset a second time.

Kafka acknowledges records in the page cache. When the machine loses power the end of a partition is
gone, and Kafka would give the next records the offsets of lost ones. But sessions, checkpoints and
tables remember those: they would take new records for ones that they have had. So a partition goes
on `SKIPPED` offsets later, in a segment of its own. That begins with a record by which consumers
know where they are: one that they are not shown, or, where a reader waits to see the last record of
all, one with `SKIPPED_KEY`.

A `LogGap` is the range passed over so. Gaps are noted in a file until the router has moved its
positions behind them; then in another one, until the lake has moved its checkpoints.
"""

import json
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from mqlake.durable import sync, write_durably
from mqlake.log.files import segments
from mqlake.records.messages import (
    DEAD_LETTERS,
    EVENTS,
    INBOUND,
    OUTPUTS,
    RULES,
    SESSIONS,
    SKIPPED_KEY,
)

REMEMBERED: Final = (INBOUND, SESSIONS, EVENTS, RULES, OUTPUTS, DEAD_LETTERS)
"""Log topics whose offsets are noted outside of the log topic."""
SEEN: Final = frozenset({SESSIONS, RULES, OUTPUTS})
"""Those of them of which a reader waits to see the last record."""
SKIPPED: Final = 1 << 24
"""More than a partition takes in the half minute that the kernel may keep to itself."""
GAPS_FILE: Final = "log-gaps.json"
"""File of gaps that no query has passed yet, in the folder of checkpoints."""
LEFT_FILE: Final = "log-gaps-of-tables.json"
"""File of gaps that the router has passed, there too."""

_CLEAN: Final = ".kafka_cleanshutdown"
_OFFSET_AND_LENGTH: Final = struct.Struct(">qi")
_REST: Final = struct.Struct(">hiqqqhii")
"""Header of a batch behind its checksum: attributes, last offset delta, first and last timestamp,
producer, its epoch, sequence, number of records."""
_LAST_DELTA_AT: Final = 23
_CONTROL: Final = 0x20
_MARKER: Final = struct.pack(">hh", 0, 1)
"""Key of a control record: version 0, commit. Of no producer it means nothing."""
_COORDINATOR: Final = struct.pack(">hi", 0, 0)


class LogGap(NamedTuple):
    """Offsets that no record has."""

    log_topic: str
    partition: int
    first: int
    """Offset at which the log ended when it was found."""
    next: int
    """Offset at which it goes on."""


def ended_in_order(log_dir: Path) -> bool:
    """Tell whether Kafka wrote down all it had when it ended; True of a new log."""
    return (log_dir / _CLEAN).exists() or not any(_partitions(log_dir))


def skip_offsets(log_dir: Path) -> list[LogGap]:
    """Let each partition go on behind a gap. Kafka has ended in order, and does not run.

    Raises:
        OSError: A partition cannot be read or written.
    """
    gaps = []
    for log_topic, partition in sorted(_partitions(log_dir)):
        folder = log_dir / f"{log_topic}-{partition}"
        found = segments(log_dir, log_topic, partition)
        if found:
            first = end_offset(folder / f"{found[-1].first_offset:020d}.log")
            gap = LogGap(log_topic, partition, first, first + SKIPPED)
            make = seen_batch if log_topic in SEEN else unseen_batch
            write_durably(folder / f"{gap.next - 1:020d}.log", make(gap.next - 1))
            gaps.append(gap)
    return gaps


def end_offset(segment: Path) -> int:
    """Return the offset behind the last whole batch of a segment.

    Raises:
        OSError: It cannot be read.
    """
    end = int(segment.stem)
    size = segment.stat().st_size
    at = 0
    with segment.open("rb") as file:
        while at + _LAST_DELTA_AT + 4 <= size:
            file.seek(at)
            head = file.read(_LAST_DELTA_AT + 4)
            offset, length = _OFFSET_AND_LENGTH.unpack_from(head)
            at += _OFFSET_AND_LENGTH.size + length
            if length <= 0 or at > size:
                break
            end = offset + int.from_bytes(head[_LAST_DELTA_AT:], "big") + 1
    return end


def unseen_batch(offset: int) -> bytes:
    """Return a batch with one control record: consumers pass over it, and know where they are."""
    return _batch(offset, _CONTROL, _field(_MARKER) + _field(_COORDINATOR))


def seen_batch(offset: int) -> bytes:
    """Return a batch with one record of `SKIPPED_KEY`, without a value."""
    return _batch(offset, 0, _field(SKIPPED_KEY) + _varint(-1))


def _batch(offset: int, attributes: int, key_and_value: bytes) -> bytes:
    # Attributes, and the differences of time and offset to the batch's; no headers.
    body = b"\0" + _varint(0) + _varint(0) + key_and_value + _varint(0)
    record = _varint(len(body)) + body
    now_ms = round(time.time() * 1000)
    checked = _REST.pack(attributes, 0, now_ms, now_ms, -1, -1, -1, 1) + record
    versioned = struct.pack(">ibI", -1, 2, crc32c(checked)) + checked
    return _OFFSET_AND_LENGTH.pack(offset, len(versioned)) + versioned


def crc32c(data: bytes) -> int:
    """Return the checksum of Kafka's batches (Castagnoli); for a few bytes only."""
    crc = 0xFFFFFFFF
    for octet in data:
        crc ^= octet
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def note_gaps(checkpoints: Path, gaps: Iterable[LogGap], file: str = GAPS_FILE) -> None:
    """Add gaps to those that are noted in a file.

    Raises:
        OSError: They cannot be written.
    """
    whole = [*noted_gaps(checkpoints, file), *gaps]
    write_durably(checkpoints / file, json.dumps(whole).encode())


def noted_gaps(checkpoints: Path, file: str = GAPS_FILE) -> list[LogGap]:
    """Return the gaps that are noted.

    Raises:
        OSError: They cannot be read.
        ValueError: The file is damaged.
    """
    try:
        data = (checkpoints / file).read_bytes()
    except FileNotFoundError:
        return []
    return [LogGap(*gap) for gap in json.loads(data)]


def forget_gaps(checkpoints: Path, file: str = GAPS_FILE) -> None:
    """Delete the notes."""
    (checkpoints / file).unlink(missing_ok=True)
    sync(checkpoints)


def _partitions(log_dir: Path) -> list[tuple[str, int]]:
    names = (path.name.rpartition("-") for path in log_dir.glob("mqlake.*-*"))
    return [
        (log_topic, int(partition))
        for log_topic, _, partition in names
        if log_topic in REMEMBERED and partition.isdecimal()
    ]


def _field(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """Return a small number as Kafka writes it, zigzag."""
    assert -64 <= number < 64
    return bytes((number * 2 if number >= 0 else -number * 2 - 1,))
