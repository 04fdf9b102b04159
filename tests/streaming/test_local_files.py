"""What Spark has closed or renamed is there after a power loss: a real one, of a disk in a file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resilience.machines import volume
from resilience.machines.volume import Volume
from streaming.jvm.vocabulary import EXPENDABLE_OPTION

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(bool(volume.missing()), reason=volume.missing() or "-"),
]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Volume]:
    disk = Volume(tmp_path / "image", tmp_path / "disk", 32)
    disk.start()
    yield disk
    disk.stop()


class _Files:
    """Java's side: files by their paths below one folder."""

    def __init__(self, jvm: Any, root: Path, expendable: str = "") -> None:
        self._jvm = jvm
        self._root = root
        configuration = jvm.org.apache.hadoop.conf.Configuration(False)
        configuration.set(EXPENDABLE_OPTION, expendable)
        self._files = jvm.mqlake.spark.LocalFiles()
        self._files.initialize(jvm.java.net.URI("file:///"), configuration)

    def write(self, name: str, data: bytes) -> None:
        stream = self._files.create(self._path(name), True)
        stream.write(data)
        stream.close()

    def rename(self, old: str, new: str) -> None:
        assert self._files.rename(self._path(old), self._path(new))

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(str(self._root / name))


def _lose_power(disk: Volume) -> None:
    disk.cut()
    disk.unmount()
    disk.mount()


def test_a_closed_file_survives_a_power_loss_with_its_folders(
    routing_jvm: Any, disk: Volume
) -> None:
    files = _Files(routing_jvm, disk.mount_point)
    files.write("tables/messages/part-0.parquet", b"rows" * 10_000)
    _lose_power(disk)
    path = disk.mount_point / "tables/messages/part-0.parquet"
    assert path.read_bytes() == b"rows" * 10_000


def test_a_renamed_file_has_its_name_after_a_power_loss(routing_jvm: Any, disk: Volume) -> None:
    files = _Files(routing_jvm, disk.mount_point)
    for number in range(20):
        files.write(f"_delta_log/.{number}.tmp", b"commit")
        files.rename(f"_delta_log/.{number}.tmp", f"_delta_log/{number}.json")
    _lose_power(disk)
    found = {path.name: path.read_bytes() for path in (disk.mount_point / "_delta_log").iterdir()}
    assert found == {f"{number}.json": b"commit" for number in range(20)}


def test_files_of_an_expendable_folder_are_left_to_the_kernel(
    routing_jvm: Any, disk: Volume
) -> None:
    expendable = disk.mount_point / "results"
    files = _Files(routing_jvm, disk.mount_point, str(expendable))
    files.write("results/part-0.parquet", b"rows" * 10_000)
    _lose_power(disk)
    path = expendable / "part-0.parquet"
    assert not path.exists() or path.stat().st_size == 0
