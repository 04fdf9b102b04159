"""The file of expected loads: read once, again when it is another one, kept when that is none."""

import os
from pathlib import Path

import pytest

from ingest.balancer.loads_file import LoadsFile

pytestmark = pytest.mark.anyio


async def test_it_is_read_when_it_is_there_and_when_it_has_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "loads.csv"
    loads = LoadsFile(file, 64, 0)
    assert await loads.changed() is None
    assert (loads.made_at, loads.problem, caplog.records) == (None, "", [])
    file.write_text("default,heavy,30\n")
    os.utime(file, (1_000, 1_000))
    expected = await loads.changed()
    assert expected is not None
    assert max(expected.loads) > 1
    assert loads.made_at == 1_000
    assert await loads.changed() is None
    file.write_text("default,heavy,30\ndefault,light,1\n")
    assert await loads.changed() is not None


async def test_a_file_that_cannot_be_read_leaves_the_last_one_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "loads.csv"
    file.write_text("default,heavy,30\n")
    os.utime(file, (1_000, 1_000))
    loads = LoadsFile(file, 64, 0)
    assert await loads.changed() is not None
    file.write_text("default,heavy\n")
    assert await loads.changed() is None
    assert "expected tenant,client_id,rate,topic" in loads.problem
    assert "expected loads not read" in caplog.text
    assert loads.made_at == 1_000
    file.write_text("default,heavy,3\n")
    assert await loads.changed() is not None
    assert loads.problem == ""
