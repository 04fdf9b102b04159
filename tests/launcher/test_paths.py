from pathlib import Path
from stat import S_IMODE

import pytest

from launcher.paths import DataDirectory


@pytest.mark.parametrize("mode", [None, 0o700, 0o755, 0o777, 0o750])
def test_data_directory_is_its_owners_alone(tmp_path: Path, mode: int | None) -> None:
    root = tmp_path / "of" / "mine"
    if mode is not None:
        root.mkdir(parents=True)
        root.chmod(mode)
    DataDirectory(root).make()
    assert S_IMODE(root.stat().st_mode) == 0o700
