"""The archive of classes: written by one JVM, used by the next, of one class path."""

import os
import subprocess
from pathlib import Path

import pytest

from streaming.jvm.class_archive import ClassArchive

pytestmark = pytest.mark.programs

JAVA = "/usr/bin/java"


def an_archive(folder: Path, *class_path: str, name: str = "spark", jvm: int = 0) -> ClassArchive:
    found = ClassArchive.of(folder, name, JAVA, list(class_path or ("a.jar", "b.jar")), jvm)
    assert found is not None
    return found


def written_by(archive: ClassArchive) -> Path:
    """Return where a JVM with these options writes."""
    name, _, path = archive.options()[-1].partition("=")
    assert name == "-XX:ArchiveClassesAtExit"
    return Path(path)


def uses(archive: ClassArchive) -> bool:
    return archive.options()[-1] == f"-XX:SharedArchiveFile={archive.path}"


def test_what_one_jvm_has_written_the_next_one_uses(tmp_path: Path) -> None:
    archive = an_archive(tmp_path)
    written_by(archive).write_bytes(b"classes")
    assert not archive.is_written
    for _ in range(2):
        again = an_archive(tmp_path)
        assert uses(again)
        assert again.path.read_bytes() == b"classes"
    assert list(tmp_path.iterdir()) == [archive.path]


def test_what_java_has_written_it_reads(tmp_path: Path) -> None:
    """Two at once, which is one too many; a third uses what one of them has written."""
    java = Path(os.path.realpath(subprocess.check_output(("which", "java"), text=True).strip()))
    archives = [an_archive(tmp_path, jvm=jvm) for jvm in (1, 2)]
    writing = [
        subprocess.Popen((java, *one.options(), "-version"), stderr=subprocess.DEVNULL)
        for one in archives
    ]
    assert [one.wait(60) for one in writing] == [0, 0]
    assert len(list(tmp_path.glob("*.tmp"))) == 2
    last = an_archive(tmp_path, jvm=3)
    assert uses(last)
    command = (str(java), *last.options(), "-Xshare:on", "-Xlog:cds=info", "-version")
    read = subprocess.run(command, capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stderr
    assert "alternative address" not in read.stdout, "each JVM has a copy of its own"
    assert list(tmp_path.iterdir()) == [last.path]


def test_what_is_not_finished_is_not_used(tmp_path: Path) -> None:
    archive = an_archive(tmp_path)
    written_by(archive).write_bytes(bytes(4096) + b"half")
    assert not uses(an_archive(tmp_path))


def test_what_processes_that_were_killed_have_left_is_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen(("true",))
    ended.wait()
    left, written = (tmp_path / f"spark-0.{pid}-0.tmp" for pid in (ended.pid, os.getppid()))
    left.touch()
    left.with_name(f"{left.name}.classlist").touch()
    written.touch()
    an_archive(tmp_path).options()
    assert list(tmp_path.iterdir()) == [written]


def test_another_class_path_has_another_archive_which_takes_the_place_of_the_old(
    tmp_path: Path,
) -> None:
    old, new = an_archive(tmp_path, "a.jar"), an_archive(tmp_path, "b.jar")
    other = an_archive(tmp_path, name="kafka")
    for archive in (old, other, new):
        written_by(archive).write_bytes(b"classes")
        assert uses(archive)
    assert {*tmp_path.iterdir()} == {new.path, other.path}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_has_none(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert ClassArchive.of(tmp_path, "spark", JAVA, ["a.jar"]) is None


def test_a_folder_that_cannot_be_made_has_none(tmp_path: Path) -> None:
    assert ClassArchive.of(tmp_path / "missing" / "classes", "spark", JAVA, ["a.jar"]) is None
