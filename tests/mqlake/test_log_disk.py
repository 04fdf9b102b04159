"""When a log is full, of disks that the test makes up."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from api.settings import ApiSettings
from ingest.federation.settings import FederationSettings
from ingest.gateway.settings.gateway import GatewaySettings
from mqlake.processes.log_disk import ELSEWHERE, LogDisk, environment_of
from mqlake.settings import LogDiskSettings, ProcessSettings, load
from rules.runner.settings import RulesSettings
from streaming.settings.lake import LakeSettings


class Usage(NamedTuple):
    """What `shutil.disk_usage` returns."""

    total: int
    used: int
    free: int


def have_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(1, 1, free))


def fail(_path: Path) -> None:
    raise OSError(5, "Input/output error")


def test_a_log_is_full_before_its_disk_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    disk = LogDisk(LogDiskSettings(folder=tmp_path, min_free_bytes=100 << 20))
    have_free(monkeypatch, 99 << 20)
    assert disk.look() == "99 MiB free on the log's disk, 100 MiB needed"
    have_free(monkeypatch, 100 << 20)
    assert disk.look() == ""
    monkeypatch.setattr(shutil, "disk_usage", fail)
    assert disk.look() == "the log's disk cannot be looked at: Input/output error"


def test_a_log_is_full_beyond_its_size(tmp_path: Path) -> None:
    disk = LogDisk(LogDiskSettings(folder=tmp_path, min_free_bytes=0, max_bytes=2 << 20))
    segment = tmp_path / "mqlake.inbound-0" / "0.log"
    segment.parent.mkdir()
    segment.write_bytes(b"x" * (3 << 20))
    assert disk.look() == "3 MiB in the log, 2 MiB allowed"
    segment.unlink()
    assert disk.look() == ""


def test_a_log_elsewhere_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", fail)
    assert ELSEWHERE.why_full() == ""


def test_an_answer_holds_for_a_second(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = [7.0]
    disk = LogDisk(LogDiskSettings(folder=tmp_path, min_free_bytes=1), monotonic=lambda: now[0])
    have_free(monkeypatch, 1)
    assert disk.why_full() == ""
    have_free(monkeypatch, 0)
    now[0] += 0.9
    assert disk.why_full() == ""
    now[0] += 0.1
    assert disk.why_full() != ""


PROCESSES: dict[str, type[ProcessSettings]] = {
    "api": ApiSettings,
    "federation": FederationSettings,
    "gateway": GatewaySettings,
    "lake": LakeSettings,
    "rules": RulesSettings,
}


@pytest.mark.parametrize("most", [None, 7])
@pytest.mark.parametrize("process", PROCESSES)
def test_a_process_reads_what_it_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, process: str, most: int | None
) -> None:
    told = LogDiskSettings(folder=tmp_path, min_free_bytes=5, max_bytes=most)
    for name, value in environment_of(told, process).items():
        monkeypatch.setenv(name, value)
    loaded: Any = load(PROCESSES[process])
    assert loaded.log_disk == told
    assert environment_of(LogDiskSettings(), process) == {}
