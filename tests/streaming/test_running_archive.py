"""A JVM writes the archive of its classes while it runs, and the next one starts from it."""

from pathlib import Path

import pytest

from streaming.jvm.class_archive import ClassArchive
from streaming.jvm.jars import PYSPARK_JARS
from streaming.jvm.process import Jvm, start_jvm

pytestmark = pytest.mark.spark


def start(jars: list[Path], archives: Path) -> Jvm:
    class_path = [str(PYSPARK_JARS / "*"), *map(str, jars)]
    return start_jvm(["-XX:+UseSerialGC", "-Xmx256m"], class_path, archives=archives)


def maps(jvm: Jvm, file: Path) -> bool:
    return str(file) in Path(f"/proc/{jvm.process.pid}/maps").read_text()


@pytest.mark.parametrize("beside", [False, True], ids=["by itself", "by another one"])
def test_what_is_written_of_a_running_jvm_the_next_one_uses(
    beside: bool, routing_jars: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if beside:
        monkeypatch.setattr(ClassArchive, "options_of_running", ClassArchive.options_of_busy)
    first = start(routing_jars, tmp_path)
    archive = first.archive
    assert archive is not None
    (archive.write_beside if beside else archive.write)(first.process.pid)
    assert first.process.poll() is None, "it goes on"
    first.kill()
    assert list(tmp_path.iterdir()) == [archive.path]
    assert not list(Path.cwd().glob("java_pid*"))
    second = start(routing_jars, tmp_path)
    try:
        assert archive.is_written
        assert maps(second, archive.path)
    finally:
        second.kill()
