from pathlib import Path

import pytest

from mqlake.bench.programs import FALLBACK, Programs, build_programs


def test_programs_are_built_once(compiled: Programs) -> None:
    assert compiled.language == "C"
    folder = Path(compiled.loader[0]).parent
    assert build_programs(folder) == compiled
    built = {Path(compiled.loader[0]).name, Path(compiled.connector[0]).name}
    assert {path.name for path in folder.iterdir()} == built


def test_without_a_compiler_the_programs_are_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build_programs(tmp_path / "programs") == FALLBACK
