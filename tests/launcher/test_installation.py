import hashlib
import json
import os
import re
import sys
import threading
from pathlib import Path

import pytest

from launcher.installation import DEV_LOCK, RUN_LOCK, Installation, last_error, select_packages
from launcher.paths import CONFIG
from mqlake.errors import OperationalError

pytestmark = pytest.mark.programs

LOCK = """\
packaging==25.0 \\
    --hash=sha256:aa
pyspark==4.2.0 \\
    --hash=sha256:bb
setuptools==80.9.0 ; python_version >= '3.11' \\
    --hash=sha256:cc \\
    --hash=sha256:dd
wheel==0.45.1 \\
    --hash=sha256:ee
"""


JAR = b"classes"
SUM = f"{hashlib.sha256(JAR).hexdigest()}  spark/a-1.jar\n"


class Recorded(Installation):
    """Does everything but run the programs; those it only notes, with what they leave behind."""

    jar = JAR

    def _step(self, title: str, command: list[str]) -> None:
        with (self.runtime / "steps").open("a") as file:
            file.write(title.split(",")[0] + "\n")
        if title == "virtual environment":
            (self.venv / "bin").mkdir(parents=True)
            (self.venv / "bin" / "python").symlink_to(sys.executable)
            packages = self.venv / "lib" / "python3.11" / "site-packages"
            (packages / "pyspark" / "jars").mkdir(parents=True)
            (packages / "pyspark" / "jars" / "ivy-2.5.3.jar").touch()
        elif title == "jars":
            (self.runtime / "jars.new" / "spark").mkdir(parents=True)
            (self.runtime / "jars.new" / "spark" / "a-1.jar").write_bytes(self.jar)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch(mode=0o755)
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="17.0.1"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    root = tmp_path / "a checkout"
    (root / "conf" / "jars").mkdir(parents=True)
    for name in (RUN_LOCK, DEV_LOCK):
        (root / "conf" / name).write_text(LOCK)
    (root / "conf" / "jars" / "ivy.xml").write_text("<ivy-module/>")
    (root / "conf" / "jars" / "sha256sums").write_text(SUM)
    return Recorded(root, root / ".runtime", tmp_path / "cache", progress=lambda line: None)


def steps(installation: Installation) -> list[str]:
    """Return what was done since the last call, in order; last what is done beside each other."""
    path = installation.runtime / "steps"
    done = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return sorted(done, key=lambda step: EVERYTHING.index(step) if step in BESIDE else -1)


BESIDE = ["byte code", "jars"]
EVERYTHING = ["virtual environment", "build tools", "Python packages", *BESIDE]


def test_first_start_makes_everything_and_the_second_nothing(checkout: Recorded) -> None:
    assert checkout.ensure(RUN_LOCK) == Path(os.environ["JAVA_HOME"])
    assert steps(checkout) == EVERYTHING
    checkout.ensure(RUN_LOCK)
    assert steps(checkout) == []


def test_packages_for_tests_are_added_and_serve_the_program_too(checkout: Recorded) -> None:
    checkout.ensure(RUN_LOCK)
    steps(checkout)
    (checkout.checkout / "conf" / DEV_LOCK).write_text(LOCK + "pytest==9.0\n")
    checkout.ensure(DEV_LOCK)
    assert steps(checkout) == EVERYTHING[1:4]
    checkout.ensure(RUN_LOCK)
    assert steps(checkout) == []


def test_changed_lock_file_installs_packages_again(checkout: Recorded) -> None:
    checkout.ensure(RUN_LOCK)
    steps(checkout)
    (checkout.checkout / "conf" / RUN_LOCK).write_text(LOCK + "more==1\n")
    checkout.ensure(RUN_LOCK)
    assert steps(checkout) == EVERYTHING[1:4]


def test_changed_jar_list_retrieves_jars_again(checkout: Recorded) -> None:
    checkout.ensure(RUN_LOCK)
    steps(checkout)
    (checkout.checkout / "conf" / "jars" / "ivy.xml").write_text("<ivy-module> </ivy-module>")
    checkout.ensure(RUN_LOCK)
    assert steps(checkout) == ["jars"]


def test_jars_that_are_not_those_of_the_list_are_not_used(checkout: Recorded) -> None:
    checkout.ensure(RUN_LOCK)
    sums = checkout.checkout / "conf" / "jars" / "sha256sums"
    sums.write_text(f"{'0' * 64}  spark/a-1.jar\n{'0' * 64}  kafka/b-1.jar\n")
    steps(checkout)
    said = r"kafka/b-1\.jar is missing, spark/a-1\.jar has another hash; they are in .* not used"
    for _ in range(2):
        with pytest.raises(OperationalError, match=said):
            checkout.ensure(RUN_LOCK)
        assert steps(checkout) == ["jars"], "they are looked for again"
    sums.write_text("")
    with pytest.raises(OperationalError, match=r"spark/a-1\.jar is not listed"):
        checkout.ensure(RUN_LOCK)
    sums.write_text(SUM)
    steps(checkout)
    checkout.ensure(RUN_LOCK)
    assert steps(checkout) == ["jars"]
    checkout.ensure(RUN_LOCK)
    assert steps(checkout) == []


def test_jars_of_an_earlier_version_are_checked_where_they_are(checkout: Recorded) -> None:
    checkout.ensure(RUN_LOCK)
    steps(checkout)
    stamp = checkout.runtime / "jars.stamp"
    before = {"ivy.xml": json.loads(stamp.read_text())["ivy.xml"]}
    for jar, expected in ((JAR, []), (b"damaged", ["jars"])):
        stamp.write_text(json.dumps(before))
        (checkout.runtime / "jars" / "spark" / "a-1.jar").write_bytes(jar)
        checkout.ensure(RUN_LOCK)
        assert steps(checkout) == expected


def test_the_jars_of_this_checkout_are_listed() -> None:
    folder = Installation.of_this_checkout().runtime / "jars"
    listed = (CONFIG / "jars" / "sha256sums").read_text().splitlines()
    names = [line.partition("  ")[2] for line in listed]
    assert all(re.fullmatch("[0-9a-f]{64}  (spark|kafka|build)/[^/]+[.]jar", one) for one in listed)
    assert names == sorted(set(names))
    assert {one for one in names if not (folder / one).is_file()} == set()


def test_interrupted_set_up_begins_again(
    checkout: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Recorded, title: str, command: list[str]) -> None:
        step(self, title, command)
        if title == "Python packages":
            raise KeyboardInterrupt

    step = Recorded._step
    with monkeypatch.context() as patch:
        patch.setattr(Recorded, "_step", fail)
        with pytest.raises(KeyboardInterrupt):
            checkout.ensure(RUN_LOCK)
    steps(checkout)
    checkout.ensure(RUN_LOCK)
    assert steps(checkout) == EVERYTHING


def test_jars_come_while_packages_are_compiled(
    checkout: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(self: Recorded, title: str, command: list[str]) -> None:
        if title == "byte code":
            assert has_jars.wait(60)
        step(self, title, command)
        if title == "jars":
            has_jars.set()

    step, has_jars = Recorded._step, threading.Event()
    monkeypatch.setattr(Recorded, "_step", wait)
    checkout.ensure(RUN_LOCK)
    assert steps(checkout) == EVERYTHING


def test_what_cannot_be_compiled_is_said_and_begins_again(
    checkout: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Recorded, title: str, command: list[str]) -> None:
        if title == "byte code":
            raise OperationalError("set-up of byte code failed")
        step(self, title, command)

    step = Recorded._step
    with monkeypatch.context() as patch:
        patch.setattr(Recorded, "_step", fail)
        with pytest.raises(OperationalError, match="byte code"):
            checkout.ensure(RUN_LOCK)
    steps(checkout)
    checkout.ensure(RUN_LOCK)
    assert steps(checkout) == EVERYTHING[:-1]


def test_moved_checkout_gets_a_new_environment(checkout: Recorded) -> None:
    checkout.ensure(RUN_LOCK)
    moved = checkout.checkout.rename(checkout.checkout.with_name("moved"))
    there = Recorded(moved, moved / ".runtime", checkout.cache, progress=lambda line: None)
    steps(there)
    there.ensure(RUN_LOCK)
    assert steps(there) == EVERYTHING[:4]


def test_linked_runtime_of_another_checkout_is_refused_and_stays(checkout: Recorded) -> None:
    checkout.ensure(RUN_LOCK)
    steps(checkout)
    stamp = (checkout.runtime / "venv.stamp").read_bytes()
    other = checkout.checkout.with_name("other")
    other.mkdir()
    (other / ".runtime").symlink_to(checkout.runtime)
    linked = Recorded(other, other / ".runtime", checkout.cache, progress=lambda line: None)
    with pytest.raises(OperationalError, match=r"other/\.runtime is a symbolic link"):
        linked.ensure(RUN_LOCK)
    assert steps(checkout) == []
    assert (checkout.runtime / "venv.stamp").read_bytes() == stamp


def test_environment_of_a_python_that_was_replaced_is_made_anew(checkout: Recorded) -> None:
    checkout.ensure(RUN_LOCK)
    steps(checkout)
    stamp = json.loads((checkout.runtime / "venv.stamp").read_text())
    (checkout.runtime / "venv.stamp").write_text(json.dumps(stamp | {"python": "/gone/python3.10"}))
    checkout.ensure(RUN_LOCK)
    assert steps(checkout) == EVERYTHING[:4]


def test_two_set_ups_at_once_do_everything_once(checkout: Recorded) -> None:
    threads = [threading.Thread(target=checkout.ensure, args=(RUN_LOCK,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert steps(checkout) == EVERYTHING


def test_explicit_java_that_is_too_old_stops_a_set_up_but_not_a_warm_start(
    checkout: Recorded, tmp_path: Path
) -> None:
    release = tmp_path / "jdk" / "release"
    release.write_text('JAVA_VERSION="11.0.1"\n')
    with pytest.raises(OperationalError, match="is Java 11, expected 17 or newer"):
        checkout.ensure(RUN_LOCK)
    assert steps(checkout) == []
    release.write_text('JAVA_VERSION="17.0.1"\n')
    checkout.ensure(RUN_LOCK)
    release.write_text('JAVA_VERSION="11.0.1"\n')
    assert checkout.ensure(RUN_LOCK) is None


def test_failing_program_ends_in_one_sentence_with_its_own_words(tmp_path: Path) -> None:
    installation = Installation(tmp_path, tmp_path, tmp_path, progress=lambda line: None)
    script = "print('Collecting x'); print('ERROR: no matching distribution'); exit(3)"
    with pytest.raises(OperationalError) as caught:
        installation._step("Python packages", [sys.executable, "-c", script])
    assert str(caught.value) == (
        "set-up of Python packages failed: ERROR: no matching distribution; the whole output is in "
        f"{tmp_path}/setup.log, the next start tries again"
    )


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("a\nERROR: b\nc\n", "ERROR: b"),
        ("a\n  Server access error at url x\n\n", "Server access error at url x"),
        ("a\nb\n", "b"),
        ("", "no output"),
    ],
)
def test_last_error_is_the_line_that_tells_most(output: str, line: str) -> None:
    assert last_error(output) == line


def test_selected_packages_keep_their_hashes_and_conditions() -> None:
    assert select_packages(LOCK, ("setuptools", "wheel")) == (
        "setuptools==80.9.0 ; python_version >= '3.11' \\\n    --hash=sha256:cc \\\n"
        "    --hash=sha256:dd\nwheel==0.45.1 \\\n    --hash=sha256:ee\n"
    )


@pytest.mark.parametrize("lock", [RUN_LOCK, DEV_LOCK])
def test_both_lock_files_pin_the_build_tools(checkout: Recorded, lock: str) -> None:
    (checkout.checkout / "conf" / lock).write_text((CONFIG / lock).read_text())
    checkout.ensure(lock)
    selected = (checkout.runtime / "build.lock").read_text()
    names = [line.partition("==")[0] for line in selected.splitlines() if line[0] != " "]
    assert names == ["packaging", "pip", "setuptools", "wheel"]
