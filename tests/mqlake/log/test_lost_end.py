"""Files of a log whose end is not given out again; that Kafka reads them is tested with it."""

from pathlib import Path

from mqlake.log.lost_end import (
    SKIPPED,
    LogGap,
    crc32c,
    end_offset,
    ended_in_order,
    forget_gaps,
    note_gaps,
    noted_gaps,
    seen_batch,
    skip_offsets,
    unseen_batch,
)
from mqlake.records.messages import GATEWAYS, INBOUND, SKIPPED_KEY

ACCEPTED = f"{INBOUND}-0"


def _segment(folder: Path, first: int, data: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{first:020d}.log"
    path.write_bytes(data)
    return path


def test_the_checksum_is_that_of_castagnoli() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_a_record_that_is_seen_has_a_key_and_no_value() -> None:
    batch = seen_batch(70)
    # Length, attributes, two differences, length of the key, the key, no value, no headers.
    record = bytes((2 * 14, 0, 0, 0, 2 * 8)) + SKIPPED_KEY + bytes((1, 0))
    assert batch.endswith(record)
    assert int.from_bytes(batch[17:21], "big") == crc32c(batch[21:])
    assert len(batch) == 12 + int.from_bytes(batch[8:12], "big")


def test_a_segment_ends_behind_its_last_whole_batch(tmp_path: Path) -> None:
    whole = unseen_batch(7) + unseen_batch(9)
    assert end_offset(_segment(tmp_path, 5, whole)) == 10
    assert end_offset(_segment(tmp_path, 5, whole[:-1])) == 8
    assert end_offset(_segment(tmp_path, 5, b"")) == 5
    assert end_offset(_segment(tmp_path, 5, unseen_batch(7) + bytes(100))) == 8


def test_partitions_whose_offsets_others_remember_go_on_later(tmp_path: Path) -> None:
    _segment(tmp_path / ACCEPTED, 0, unseen_batch(3))
    _segment(tmp_path / ACCEPTED, 4, unseen_batch(8))
    _segment(tmp_path / f"{GATEWAYS}-0", 0, unseen_batch(3))
    gap = LogGap(INBOUND, 0, 9, 9 + SKIPPED)
    assert skip_offsets(tmp_path) == [gap]
    added = tmp_path / ACCEPTED / f"{gap.next - 1:020d}.log"
    assert end_offset(added) == gap.next
    assert len(list(tmp_path.rglob("*.log"))) == 4
    # A power loss right behind the last one.
    assert skip_offsets(tmp_path) == [LogGap(INBOUND, 0, gap.next, gap.next + SKIPPED)]


def test_a_new_log_and_one_that_kafka_has_closed_ended_in_order(tmp_path: Path) -> None:
    assert ended_in_order(tmp_path)
    _segment(tmp_path / ACCEPTED, 0, b"")
    assert not ended_in_order(tmp_path)
    (tmp_path / ".kafka_cleanshutdown").touch()
    assert ended_in_order(tmp_path)


def test_gaps_are_noted_until_they_are_forgotten(tmp_path: Path) -> None:
    gaps = [LogGap(INBOUND, 0, 5, 9), LogGap(INBOUND, 1, 6, 9)]
    for gap in gaps:
        note_gaps(tmp_path / "checkpoints", [gap])
    assert noted_gaps(tmp_path / "checkpoints") == gaps
    forget_gaps(tmp_path / "checkpoints")
    assert noted_gaps(tmp_path / "checkpoints") == []
