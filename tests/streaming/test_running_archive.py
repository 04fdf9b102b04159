"""A JVM writes the archive of its classes while it runs, and the next one starts from it."""

from pathlib import Path

import pytest

from streaming.jvm.jars import PYSPARK_JARS
from streaming.jvm.process import Jvm, start_jvm

pytestmark = pytest.mark.spark


def start(jars: list[Path], archives: Path) -> Jvm:
    class_path = [str(PYSPARK_JARS / "*"), *map(str, jars)]
    return start_jvm(["-XX:+UseSerialGC", "-Xmx256m"], class_path, archives=archives)


def maps(jvm: Jvm, file: Path) -> bool:
    return str(file) in Path(f"/proc/{jvm.process.pid}/maps").read_text()


def test_what_a_running_jvm_has_written_the_next_one_uses(
    routing_jars: list[Path], tmp_path: Path
) -> None:
    first = start(routing_jars, tmp_path)
    archive = first.archive
    assert archive is not None
    archive.write(first.process.pid)
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
