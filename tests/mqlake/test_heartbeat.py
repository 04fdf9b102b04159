import json
import os
import time
from pathlib import Path

import pytest

from mqlake.processes.heartbeat import STALE_SECONDS, Heartbeat, read_heartbeat, write_heartbeat


def test_a_heartbeat_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "gateway-1.json"
    before = time.time()
    write_heartbeat(path, "gateway-1", healthy=True, detail="serving", figures={"clients": 3})
    beat = read_heartbeat(path)
    assert beat is not None
    assert (beat.name, beat.pid, beat.healthy) == ("gateway-1", os.getpid(), True)
    assert (beat.detail, beat.figures) == ("serving", {"clients": 3})
    assert before <= beat.written_at <= time.time()
    assert beat.is_fresh()


def test_a_heartbeat_replaces_the_one_before_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "gateway-1.json"
    for healthy in (False, True):
        write_heartbeat(path, "gateway-1", healthy=healthy, detail="")
    beat = read_heartbeat(path)
    assert beat is not None
    assert beat.healthy
    assert list(tmp_path.iterdir()) == [path]


def test_a_heartbeat_goes_stale() -> None:
    beat = Heartbeat("api", 1, healthy=True, detail="", written_at=1000.0)
    assert beat.is_fresh(1000.0)
    assert beat.is_fresh(1000.0 + STALE_SECONDS - 0.1)
    assert not beat.is_fresh(1000.0 + STALE_SECONDS)


def test_a_heartbeat_in_the_future_is_told() -> None:
    beat = Heartbeat("api", 1, healthy=True, detail="", written_at=1000.0)
    assert beat.ahead_seconds(1000.0) == 0.0
    assert beat.ahead_seconds(998.5) == 0.0
    assert beat.ahead_seconds(940.0) == 60.0


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"name": "x"}', '{"unknown": 1}'])
def test_a_damaged_heartbeat_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "api.json"
    path.write_text(text, encoding="utf-8")
    assert read_heartbeat(path) is None
    path.write_bytes(b"\xff\xfe")
    assert read_heartbeat(path) is None


def test_no_heartbeat_is_none(tmp_path: Path) -> None:
    assert read_heartbeat(tmp_path / "api.json") is None
    assert read_heartbeat(tmp_path) is None


def test_a_heartbeat_is_json_that_others_can_read(tmp_path: Path) -> None:
    path = tmp_path / "api.json"
    write_heartbeat(path, "api", healthy=False, detail="starting")
    assert json.loads(path.read_text(encoding="utf-8"))["detail"] == "starting"
