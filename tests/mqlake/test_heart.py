import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from mqlake.processes import heart as module
from mqlake.processes.heart import LIVE_SECONDS, Heart, ProcessState
from mqlake.processes.heartbeat import STALE_SECONDS, read_heartbeat
from tests.waiting import until


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds on the clock of hearts."""
    passed = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: passed[0]))
    return passed


def test_a_process_that_starts_is_live_and_not_ready() -> None:
    heart = Heart("lake", None)
    assert heart.is_live
    assert not heart.is_healthy
    assert heart.readiness() == (False, "starting")


def test_one_that_waits_for_others_is_live_and_says_for_what(passed: list[float]) -> None:
    heart = Heart("lake", None)
    for _ in range(300):
        passed[0] += 1
        heart.beat(healthy=False, detail="the log does not answer")
    assert heart.is_live
    assert heart.readiness() == (False, "the log does not answer")


def test_one_that_is_silent_is_first_not_ready_then_not_live(passed: list[float]) -> None:
    heart = Heart("lake", None)
    heart.beat(healthy=True, detail="keeping the tables")
    assert (heart.is_live, heart.is_healthy) == (True, True)
    assert heart.readiness() == (True, "keeping the tables")
    passed[0] += STALE_SECONDS
    assert (heart.is_live, heart.is_healthy) == (True, False)
    assert heart.readiness() == (
        False,
        f"has not moved for {STALE_SECONDS:.0f} s; before that: keeping the tables",
    )
    passed[0] += LIVE_SECONDS
    assert not heart.is_live


def test_one_may_be_well_and_take_no_work() -> None:
    heart = Heart("gateway-1", None)
    heart.note(ProcessState(healthy=True, detail="0 clients, drained", is_ready=False))
    assert heart.is_healthy
    assert heart.readiness() == (False, "0 clients, drained")


def test_a_beat_is_in_the_file(tmp_path: Path) -> None:
    heart = Heart("lake", tmp_path / "run" / "lake.json")
    heart.beat(healthy=True, detail="well", figures={"a": 1})
    assert heart.file is not None
    beat = read_heartbeat(heart.file)
    assert beat is not None
    assert (beat.name, beat.healthy, beat.detail, beat.figures) == ("lake", True, "well", {"a": 1})


def test_a_file_that_cannot_be_written_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    heart = Heart("lake", tmp_path / "file" / "lake.json")
    heart.beat(healthy=True, detail="well")
    assert heart.is_healthy
    assert [one.message for one in caplog.records] == ["heartbeat not written"]


async def _beats_on(file: Path) -> None:
    heart = Heart("gateway-1", file)
    beating = asyncio.create_task(heart.beat_on(lambda: ProcessState(True, "serving")))
    await until(file.exists)
    assert heart.readiness() == (True, "serving")
    beating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beating


def test_an_event_loop_beats_as_long_as_it_turns(tmp_path: Path) -> None:
    asyncio.run(_beats_on(tmp_path / "gateway-1.json"))
