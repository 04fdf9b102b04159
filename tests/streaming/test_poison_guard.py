"""What the guard has the engine pass over, and which rules it has paused."""

from pathlib import Path

import pytest

from mqlake.clock import ManualClock
from streaming.application.poison import PoisonGuard
from streaming.application.poison_file import Poison, PoisonPlace
from tests.streaming.test_poison_file import die, slot


def test_rules_are_asked_to_be_paused_again_and_again(tmp_path: Path) -> None:
    poison = Poison(tmp_path)
    for _ in range(2):
        die(tmp_path, slot())
        PoisonGuard(tmp_path, tmp_path, ManualClock()).find()
    poison.skip(PoisonPlace("default", "other", "i", 0, 1), 1)
    guard = PoisonGuard(tmp_path, tmp_path, ManualClock())
    asked: list[tuple[tuple[str, str], int]] = []
    for _ in range(2):
        guard.pause(poison.skipped(), lambda rule, version, _: asked.append((rule, version)))
    assert asked == [(("default", "r"), 2)] * 2


def test_a_damaged_file_does_not_keep_the_engine_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    die(tmp_path, slot())
    (tmp_path / "poison.json").write_text("{")
    guard = PoisonGuard(tmp_path, tmp_path, ManualClock())
    guard.find()
    guard.find()
    assert [record.message for record in caplog.records] == ["poison is not known"]


def test_what_others_died_of_that_do_not_run_is_found(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    die(other, slot())
    PoisonGuard(tmp_path, tmp_path, ManualClock()).find([other])
    (entry,) = Poison(tmp_path).entries()
    assert entry.deaths == 1
    PoisonGuard(tmp_path, tmp_path, ManualClock()).find([other])
    assert Poison(tmp_path).entries() == [entry], "each death counts once"
