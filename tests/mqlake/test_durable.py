from pathlib import Path

import pytest

from mqlake.durable import write_durably


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    for data in (b"first, longer", b"second"):
        write_durably(path, data, mode=0o600)
    assert path.read_bytes() == b"second"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_what_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        write_durably(path, b"data")
    assert list(tmp_path.iterdir()) == [path]
