"""A file that is deleted when the disk is full, of disks that the test makes up."""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from launcher.log.reserve import LogReserve

MIB = 1 << 20


class Usage(NamedTuple):
    """What `shutil.disk_usage` returns."""

    total: int
    used: int
    free: int


class Disk:
    """Has so much without the reserve."""

    def __init__(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, min_free: int = 4 * MIB
    ) -> None:
        self.free = 100 * MIB
        self.path = path
        self.reserve = LogReserve(path, min_free)
        monkeypatch.setattr(
            shutil, "disk_usage", lambda _path: Usage(1, 1, self.free - self.reserved())
        )

    def reserved(self) -> int:
        return self.path.stat().st_blocks * 512 if self.path.exists() else 0

    def look(self, free: int) -> int:
        self.free = free
        self.reserve.look()
        return self.reserved()


def test_the_reserve_is_given_back_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path / "reserve", monkeypatch)
    assert disk.look(6 * MIB - 1) == 0, "it would take what messages may have"
    assert disk.look(6 * MIB) == 2 * MIB
    assert disk.look(5 * MIB) == 2 * MIB, "messages are refused, the log still has room"
    assert disk.look(2 * MIB + MIB // 2) == 2 * MIB
    assert disk.look(2 * MIB + MIB // 2 - 1) == 0
    assert disk.look(5 * MIB) == 0, "not made at once, which would fill the disk again"
    assert disk.look(6 * MIB) == 2 * MIB


def test_a_reserve_of_another_size_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reserve").write_bytes(b"x" * MIB)
    disk = Disk(tmp_path / "reserve", monkeypatch)
    disk.look(100 * MIB)
    assert disk.look(100 * MIB) == 2 * MIB


def test_without_a_limit_there_is_no_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Disk(tmp_path / "reserve", monkeypatch, min_free=0).look(100 * MIB) == 0


def test_a_disk_that_cannot_be_looked_at_ends_nothing(tmp_path: Path) -> None:
    LogReserve(tmp_path / "none" / "reserve", MIB).look()
