"""Files as Kafka leaves them, made here."""

from pathlib import Path

import pytest

from mqlake.log.files import Segment, first_kept, segments, taken_bytes


def test_segments_are_found_in_order_and_other_files_are_not(tmp_path: Path) -> None:
    folder = tmp_path / "mqlake.inbound-2"
    folder.mkdir()
    for name, size in (("00000000000000000070.log", 30), ("00000000000000000000.log", 10)):
        (folder / name).write_bytes(b"x" * size)
    for name in ("00000000000000000000.index", "00000000000000000003.log.deleted", "a.log"):
        (folder / name).write_bytes(b"x" * 99)
    assert segments(tmp_path, "mqlake.inbound", 2) == [Segment(0, 10), Segment(70, 30)]
    with pytest.raises(OSError, match=r"mqlake\.inbound-3"):
        segments(tmp_path, "mqlake.inbound", 3)


@pytest.mark.parametrize(
    ("most_bytes", "first"), [(1, 70), (30, 70), (31, 40), (50, 40), (51, 5), (1000, 5)]
)
def test_never_less_is_kept_than_was_asked_for(most_bytes: int, first: int) -> None:
    assert first_kept([Segment(5, 10), Segment(40, 20), Segment(70, 30)], most_bytes) == first


def test_of_nothing_everything_is_kept() -> None:
    assert first_kept([], 10) == 0


def test_what_a_log_takes_is_what_its_files_have_of_the_disk(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "full").write_bytes(b"x" * 100_000)
    with (tmp_path / "a" / "sparse").open("wb") as file:
        file.truncate(10_000_000)
    assert 100_000 <= taken_bytes(tmp_path) < 1_000_000
