"""What the guard has the engine pass over, and which rules it has paused."""

from pathlib import Path

import pytest

from mqlake.clock import ManualClock
from mqlake.poison import Place, Poison
from streaming.poison import PoisonGuard
from tests.mqlake.test_poison import die, slot


def test_rules_are_asked_to_be_paused_again_and_again(tmp_path: Path) -> None:
    poison = Poison(tmp_path)
    for _ in range(2):
        die(poison, slot())
        PoisonGuard(tmp_path, ManualClock()).find()
    poison.skip(Place("default", "other", "i", 0, 1), 1)
    guard = PoisonGuard(tmp_path, ManualClock())
    asked: list[tuple[tuple[str, str], int]] = []
    for _ in range(2):
        guard.pause(poison.buried(), lambda rule, version, _: asked.append((rule, version)))
    assert asked == [(("default", "r"), 2)] * 2


def test_a_damaged_file_does_not_keep_the_engine_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    poison = Poison(tmp_path)
    die(poison, slot())
    (tmp_path / "poison.json").write_text("{")
    guard = PoisonGuard(tmp_path, ManualClock())
    guard.find()
    guard.find()
    assert [record.message for record in caplog.records] == ["poison is not known"]
