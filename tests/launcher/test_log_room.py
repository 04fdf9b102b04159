"""How long the disk of a log lasts, of a folder whose files the test writes."""

from pathlib import Path

import pytest

from launcher.log.room import LogRoomFinding, LogRoomMeter, in_words
from mqlake.settings import LogDiskSettings

MB = 1_000_000


class Log:
    def __init__(self, folder: Path, most_bytes: int | None = 100 * MB) -> None:
        self.folder = folder
        self.now = 0.0
        disk = LogDiskSettings(folder=folder, min_free_bytes=0, max_bytes=most_bytes)
        self.meter = LogRoomMeter(disk, now=lambda: self.now)

    def after(self, seconds: float, more: int) -> LogRoomFinding:
        self.now += seconds
        with (self.folder / "segment").open("ab") as file:
            file.write(b"x" * more)
        found = self.meter.read()
        assert found is not None
        return found


def test_a_log_lasts_as_long_as_it_may_still_grow(tmp_path: Path) -> None:
    log = Log(tmp_path)
    first = log.after(0, 2 * MB)
    assert (first.growth_bytes_per_second, first.lasts_seconds) == (None, None), "nobody knows yet"
    assert log.after(10, 1 * MB).lasts_seconds is None
    found = log.after(30, 1 * MB)
    assert found.taken_bytes == pytest.approx(4 * MB, rel=0.01)
    assert found.room_bytes == pytest.approx(96 * MB, rel=0.01)
    assert found.growth_bytes_per_second == pytest.approx(2 * MB / 40, rel=0.01)
    assert found.lasts_seconds == pytest.approx(96 * 20, rel=0.01)
    assert found.describe() == "0.00 GB, at 0.05 MB/s more it lasts 32 minutes"


def test_a_log_that_does_not_grow_lasts(tmp_path: Path) -> None:
    log = Log(tmp_path, most_bytes=None)
    log.after(0, 2 * MB)
    found = log.after(60, 0)
    assert found.growth_bytes_per_second == 0
    assert found.figures["lasts_seconds"] is None
    assert found.describe() == "0.00 GB"
    assert found.room_bytes > 1000


def test_a_full_log_says_so(tmp_path: Path) -> None:
    found = Log(tmp_path, most_bytes=1 << 20).after(0, 3 << 20)
    assert found.room_bytes == 0
    assert found.figures["why_full"] == "3 MiB in the log, 1 MiB allowed"
    assert found.describe() == (
        "0.00 GB, full: messages are refused, 3 MiB in the log, 1 MiB allowed"
    )


def test_it_is_measured_now_and_then(tmp_path: Path) -> None:
    log = Log(tmp_path)
    first = log.after(0, 2 * MB)
    assert log.after(9, 2 * MB) is first
    assert log.after(1, 0).taken_bytes > first.taken_bytes


def test_a_folder_that_is_not_there_has_no_room(tmp_path: Path) -> None:
    assert LogRoomMeter(LogDiskSettings(folder=tmp_path / "none")).read() is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(45, "45 seconds"), (119, "119 seconds"), (240, "4 minutes"), (7200, "2 hours")],
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
