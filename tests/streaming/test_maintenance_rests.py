"""When maintenance leaves tables alone; without Spark."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mqlake.clock import ManualClock
from mqlake.settings import LogDiskSettings
from streaming.settings.lake import LakeSettings
from streaming.tables import maintenance
from streaming.tables.maintenance import MOST_SMALL_FILES, Maintenance

Make = Callable[..., tuple[Maintenance, list[str]]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Make:
    """Make one, and a list of the statements that it has run; all tables have many files."""

    def make(trouble: str = "", most_bytes: int | None = None) -> tuple[Maintenance, list[str]]:
        statements: list[str] = []
        session = SimpleNamespace(
            conf=SimpleNamespace(set=lambda *_: None, unset=lambda *_: None), sql=statements.append
        )
        disk = LogDiskSettings(folder=tmp_path, min_free_bytes=0, max_bytes=most_bytes)
        settings = LakeSettings(data_dir=tmp_path, jars_dir=tmp_path, log_disk=disk)
        state: Any = SimpleNamespace(lock=_Lock(), next_offsets={})
        monkeypatch.setattr(maintenance, "small_session", lambda _spark: session)
        monkeypatch.setattr(maintenance, "small_files", lambda _path: MOST_SMALL_FILES)
        spark = cast("Any", None)
        return Maintenance(spark, settings, state, ManualClock(), lambda: trouble), statements

    return make


class _Lock:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def test_while_the_log_is_full_small_files_are_not_joined(make: Make, tmp_path: Path) -> None:
    (tmp_path / "segment").write_bytes(b"x" * (2 << 20))
    full, statements = make(most_bytes=1 << 20)
    full.optimize()
    assert statements == []
    roomy, statements = make(most_bytes=1 << 30)
    roomy.optimize()
    assert "OPTIMIZE messages" in statements


@pytest.mark.promise
def test_while_the_clock_is_ahead_no_files_are_deleted(make: Make) -> None:
    wrong, statements = make(trouble="the clock says 2036")
    wrong.vacuum()
    assert statements == []
    right, statements = make()
    right.vacuum()
    assert "VACUUM messages" in statements
