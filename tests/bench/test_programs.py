from pathlib import Path

import pytest

from bench.load.programs import LoadPrograms, build_programs
from mqlake.errors import OperationalError

pytestmark = pytest.mark.programs


def test_programs_are_built_once(programs: LoadPrograms) -> None:
    folder = Path(programs.loader[0]).parent
    assert build_programs(folder) == programs
    built = {Path(programs.loader[0]).name, Path(programs.connector[0]).name}
    assert {path.name for path in folder.iterdir()} == built


def test_without_a_compiler_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OperationalError, match=r"there is no C compiler; .*apt install gcc"):
        build_programs(tmp_path / "programs")


def test_compiler_that_cannot_compile_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'stdio.h: No such file' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OperationalError, match=r"says 'stdio\.h: No such file'"):
        build_programs(tmp_path / "programs")
