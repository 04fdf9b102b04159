"""The archive of classes: written by one JVM, used by the next, of one class path."""

import os
import subprocess
from pathlib import Path

import pytest

from streaming.jvm.archive import ClassArchive

JAVA = "/usr/bin/java"


def an_archive(folder: Path, *class_path: str) -> ClassArchive:
    found = ClassArchive.of(folder, JAVA, list(class_path or ("a.jar", "b.jar")))
    assert found is not None
    return found


def written_by(archive: ClassArchive) -> Path:
    """Return where a JVM with these options writes."""
    (option,) = (one for one in archive.options() if one.startswith("-XX:"))
    name, _, path = option.partition("=")
    assert name == "-XX:ArchiveClassesAtExit"
    return Path(path)


def test_what_one_jvm_has_written_the_next_one_uses(tmp_path: Path) -> None:
    archive = an_archive(tmp_path)
    written_by(archive).write_bytes(b"classes")
    assert not archive.is_written
    archive.keep(ended_in_order=True)
    again = an_archive(tmp_path)
    assert again.options()[-1] == f"-XX:SharedArchiveFile={archive.path}"
    again.keep(ended_in_order=True)
    assert archive.path.read_bytes() == b"classes"


def test_what_a_jvm_that_was_killed_has_written_is_not_used(tmp_path: Path) -> None:
    archive = an_archive(tmp_path)
    written_by(archive).write_bytes(b"half")
    archive.keep(ended_in_order=False)
    assert list(tmp_path.iterdir()) == []


def test_what_processes_that_were_killed_have_left_is_removed(tmp_path: Path) -> None:
    archive = an_archive(tmp_path)
    ended = subprocess.Popen(("true",))
    ended.wait()
    left, written = (tmp_path / f"classes-0.{pid}.tmp" for pid in (ended.pid, os.getppid()))
    left.touch()
    written.touch()
    archive.keep(ended_in_order=False)
    assert list(tmp_path.iterdir()) == [written]


def test_another_class_path_has_another_archive_which_takes_the_place_of_the_old(
    tmp_path: Path,
) -> None:
    old, new = an_archive(tmp_path, "a.jar"), an_archive(tmp_path, "b.jar")
    written_by(old).write_bytes(b"old")
    old.keep(ended_in_order=True)
    assert not new.is_written
    written_by(new).write_bytes(b"new")
    new.keep(ended_in_order=True)
    assert list(tmp_path.iterdir()) == [new.path]


def test_a_java_that_cannot_write_archives_goes_on_without(tmp_path: Path) -> None:
    archive = an_archive(tmp_path)
    archive.keep(ended_in_order=True)
    assert not archive.is_written


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_has_none(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert ClassArchive.of(tmp_path, JAVA, ["a.jar"]) is None


def test_a_folder_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert ClassArchive.of(tmp_path / "missing", JAVA, ["a.jar"]) is None
