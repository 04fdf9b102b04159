"""Packages, Java and jars of the checkout, in its `.runtime` folder; standard library only.

    venv/          packages of one of conf/requirements*.lock, each file checked against its hash
    java/, jdk/    a Java from a wheel, only on machines without one that is new enough
    jars/<conf>/   jars of conf/jars/ivy.xml, by the resolver that ships inside pyspark, each
                   checked against its hash in conf/jars/sha256sums
    *.stamp        the sources of each, written last: without it, or with another content, the
                   part is made again
    lock           held while something is made
    setup.log      output of pip and the resolver

A complete part is recognised by reading a few small files, so a warm start costs milliseconds.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from launcher.child import die_with_parent
from launcher.java import (
    dump_base_archive,
    installed_java_home,
    java_version,
    wheel_home,
    write_wheel_home,
)
from launcher.paths import CHECKOUT
from launcher.truststore import write_truststore
from mqlake.errors import OperationalError

RUN_LOCK: Final = "requirements.lock"
DEV_LOCK: Final = "requirements-dev.lock"
JAVA_LOCK: Final = "requirements-java.lock"
BASE_ARCHIVE: Final = "base archive"
"""Member of Java's stamp: whether it has an archive of its own classes. One without the member was
made before that was asked for."""
JAR_SUMS: Final = "sha256sums"
"""In `conf/jars`."""
_JAR_FOLDERS: Final = ("spark", "kafka", "build")

# With these present first, pyspark's source distribution builds without an isolated environment,
# whose own requirements no lock file could pin. The pip of Python 3.11 takes twice the work.
_BUILD_PACKAGES: Final = ("packaging", "pip", "setuptools", "wheel")

_NEEDED_DISK_BYTES: Final = 3 * 1024**3
"""Packages 1.1 GB, as much again while they are built, jars and Java 0.3 GB."""

_LINE_START: Final = "\r\x1b[K"

Progress = Callable[[str], None]


def print_progress(line: str) -> None:
    """Tell the user on standard error, where it does not mix with a command's output."""
    # On a terminal it takes the place of the line that counts seconds.
    sys.stderr.write(f"{_LINE_START if sys.stderr.isatty() else ''}mqlake: {line}\n")
    sys.stderr.flush()


def _count_seconds(title: str, process: "subprocess.Popen[bytes]") -> int:
    """Wait for a program's exit code, and on a terminal show how long it has been."""
    if threading.current_thread() is not threading.main_thread():
        return process.wait()  # the line is that of the step beside
    started = time.monotonic()
    while True:
        try:
            return process.wait(1)
        except subprocess.TimeoutExpired:
            if sys.stderr.isatty():
                elapsed = time.monotonic() - started
                sys.stderr.write(f"{_LINE_START}mqlake:   {title} … {elapsed:.0f} s")
                sys.stderr.flush()


@dataclass(frozen=True, slots=True)
class Installation:
    """The `.runtime` folder of one checkout."""

    checkout: Path
    runtime: Path
    cache: Path
    """Downloaded jars, shared by all checkouts of a user."""
    progress: Progress = print_progress

    @classmethod
    def of_this_checkout(cls) -> "Installation":
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        return cls(CHECKOUT, CHECKOUT / ".runtime", Path(cache, "mqlake"))

    @property
    def venv(self) -> Path:
        return self.runtime / "venv"

    def ensure(self, lock: str) -> Path | None:
        """Make missing parts.

        Args:
            lock: The lock file in `conf/` whose packages are needed.

        Returns:
            The Java home to use; None when JAVA_HOME is set and useless, which only concerns
            commands that start Java and say so themselves.

        Raises:
            OperationalError: Something could not be made; names the remedy.
        """
        if self.runtime.is_symlink():
            # It is another checkout's, and parts that do not fit this one would be made in it
            # again.
            raise OperationalError(
                f"{self.runtime} is a symbolic link: a checkout needs a folder of its own there, "
                "remove the link"
            )
        if not self._is_complete(lock):
            self._make(lock)
        try:
            return installed_java_home(os.environ) or wheel_home(self.runtime)
        except OperationalError:
            return None

    def _is_complete(self, lock: str) -> bool:
        if not (self._has_packages(lock) and self._has_jars()):
            return False
        try:
            return installed_java_home(os.environ) is not None or self._has_java()
        except OperationalError:
            return True

    def _make(self, lock: str) -> None:
        try:
            self.runtime.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise OperationalError(f"cannot write to {self.checkout}: {exc.strerror}") from exc
        with _held(self.runtime / "lock", waiting=self._say_waiting):
            if self._is_complete(lock):
                return
            installed_java_home(os.environ)
            self._check_disk()
            self.progress(f"setting up in {self.runtime}, once; this takes a few minutes")
            started = time.monotonic()
            (self.runtime / "setup.log").write_bytes(b"")
            with ThreadPoolExecutor(1) as beside:
                compiled = None
                if not self._has_packages(lock):
                    self._make_packages(lock)
                    # The jars' step waits for the network most of its time.
                    compiled = beside.submit(self._compile_packages, lock)
                if installed_java_home(os.environ) is None and not self._has_java():
                    self._make_java()
                if not self._has_jars():
                    self._make_jars()
                if compiled is not None:
                    compiled.result()
            self.progress(f"set up in {time.monotonic() - started:.0f} s")

    def _say_waiting(self) -> None:
        self.progress(f"waiting for another set-up of {self.runtime} to end")

    def _check_disk(self) -> None:
        free = shutil.disk_usage(self.runtime).free
        if free < _NEEDED_DISK_BYTES and not self.venv.exists():
            raise OperationalError(
                f"the set-up needs {_NEEDED_DISK_BYTES / 1e9:.1f} GB of disk in {self.runtime}, "
                f"{free / 1e9:.1f} GB are free: free some"
            )

    # Packages

    def _has_packages(self, lock: str) -> bool:
        stamp = _read_json(self.runtime / "venv.stamp")
        return stamp.get(lock) == _digest(self._conf(lock)) and self._venv_is_sound(stamp)

    def _venv_is_sound(self, stamp: dict[str, str]) -> bool:
        """Return whether the environment still lies where it was made and has the Python it had."""
        python = self.venv / "bin" / "python"
        return stamp.get("venv") == str(self.venv) and stamp.get("python") == os.path.realpath(
            python
        ) != str(python)

    def _make_packages(self, lock: str) -> None:
        stamp_file = self.runtime / "venv.stamp"
        sound = self._venv_is_sound(_read_json(stamp_file))
        stamp_file.unlink(missing_ok=True)
        if not sound:
            shutil.rmtree(self.venv, ignore_errors=True)
            self._step("virtual environment", [sys.executable, "-m", "venv", str(self.venv)])
        # Relative to the folder it is in: the checkout may be moved.
        (self._packages / "mqlake.pth").write_text(
            os.path.relpath(self.checkout, self._packages) + "\n", encoding="utf-8"
        )
        build = self.runtime / "build.lock"
        lines = self._conf(lock).read_text(encoding="utf-8")
        build.write_text(select_packages(lines, _BUILD_PACKAGES), encoding="utf-8")
        self._step("build tools", self._pip("install", "--require-hashes", "-r", str(build)))
        self._step(
            "Python packages",
            self._pip(
                "install",
                "--require-hashes",
                "--no-build-isolation",
                # pyspark's wheel is 450 MB of jars, unpacked as soon as it is made.
                "--config-settings=--build-option=--compression=stored",
                # pip would compile on one processor.
                "--no-compile",
                "-r",
                str(self._conf(lock)),
            ),
        )

    def _compile_packages(self, lock: str) -> None:
        """Compile them on all processors; they are complete then."""
        folder = str(self._packages)
        # A file that is no Python fails when it is imported, if it ever is.
        script = f"import compileall; compileall.compile_dir({folder!r}, quiet=1, workers=0)"
        self._step("byte code", [str(self.venv / "bin" / "python"), "-c", script])
        stamp = {"venv": str(self.venv), "python": os.path.realpath(self.venv / "bin" / "python")}
        stamp[lock] = _digest(self._conf(lock))
        if lock == DEV_LOCK:  # compiled with the other as its constraint: holds all of it
            stamp[RUN_LOCK] = _digest(self._conf(RUN_LOCK))
        _write_json(self.runtime / "venv.stamp", stamp)

    @property
    def _packages(self) -> Path:
        (packages,) = self.venv.glob("lib/python3*/site-packages")
        return packages

    def _pip(self, *arguments: str) -> list[str]:
        python = str(self.venv / "bin" / "python")
        return [python, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]

    # Java

    def _has_java(self) -> bool:
        stamp, home = _read_json(self.runtime / "java.stamp"), wheel_home(self.runtime)
        is_same = stamp.get(JAVA_LOCK) == _digest(self._conf(JAVA_LOCK))
        return is_same and BASE_ARCHIVE in stamp and bool(java_version(home))

    def _make_java(self) -> None:
        (self.runtime / "java.stamp").unlink(missing_ok=True)
        target = self.runtime / "java"
        shutil.rmtree(target, ignore_errors=True)
        lock = str(self._conf(JAVA_LOCK))
        self._step(
            "Java, as this machine has none that is new enough",
            self._pip("install", "--require-hashes", "--target", str(target), "-r", lock),
        )
        home = write_wheel_home(self.runtime)
        if java_version(home) is None:
            raise OperationalError(
                f"the Java in {home} does not run on this machine: install Java 17 or newer "
                "(Debian: apt install openjdk-17-jre-headless) and set JAVA_HOME"
            )
        has_archive = "yes" if dump_base_archive(home) else "no"
        stamp = {JAVA_LOCK: _digest(self._conf(JAVA_LOCK)), BASE_ARCHIVE: has_archive}
        _write_json(self.runtime / "java.stamp", stamp)

    # Jars

    @property
    def _ivy_file(self) -> Path:
        return self.checkout / "conf" / "jars" / "ivy.xml"

    @property
    def _jar_sums(self) -> Path:
        return self.checkout / "conf" / "jars" / JAR_SUMS

    def _jar_stamp(self) -> dict[str, str]:
        return {path.name: _digest(path) for path in (self._ivy_file, self._jar_sums)}

    def _has_jars(self) -> bool:
        stamp = _read_json(self.runtime / "jars.stamp")
        return stamp == self._jar_stamp() and (self.runtime / "jars").is_dir()

    def _make_jars(self) -> None:
        stamp, sums = _read_json(self.runtime / "jars.stamp"), self._jar_sums.read_text("utf-8")
        is_same = stamp.get("ivy.xml") == _digest(self._ivy_file)
        if is_same and not wrong_jars(self.runtime / "jars", sums):
            _write_json(self.runtime / "jars.stamp", self._jar_stamp())  # of an earlier version
            return
        (self.runtime / "jars.stamp").unlink(missing_ok=True)
        unfinished = self.runtime / "jars.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        home = installed_java_home(os.environ)
        command = [str((home or wheel_home(self.runtime)) / "bin" / "java")]
        if home is None:
            # The wheel's Java knows none of the certificates that this machine trusts in addition.
            truststore = self.runtime / "truststore.jks"
            if write_truststore(truststore):
                command.append(f"-Djavax.net.ssl.trustStore={truststore}")
        (resolver,) = self.venv.glob("lib/python3*/site-packages/pyspark/jars/ivy-*.jar")
        pattern = f"{unfinished}/[conf]/[artifact]-[revision].[ext]"
        cache = self._usable_cache() / "ivy"
        command += ["-jar", str(resolver), "-ivy", str(self._ivy_file), "-cache", str(cache)]
        command += ["-confs", *_JAR_FOLDERS, "-retrieve", pattern]
        # The resolver itself does not guard its cache against a second one.
        with _held(cache.parent / "ivy.lock", waiting=self._say_waiting):
            self._step("jars", command)
        wrong = wrong_jars(unfinished, sums)
        if wrong:
            more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
            raise OperationalError(
                f"jars are not those of {self._jar_sums}: {', '.join(wrong[:3])}{more}; they are "
                f"in {unfinished} and are not used. If {self._ivy_file} was not changed, "
                f"damaged ones may be in {cache}: remove that folder and start again"
            )
        jars = self.runtime / "jars"
        shutil.rmtree(jars, ignore_errors=True)
        unfinished.rename(jars)
        _write_json(self.runtime / "jars.stamp", self._jar_stamp())

    def _usable_cache(self) -> Path:
        try:
            self.cache.mkdir(parents=True, exist_ok=True)
        except OSError:
            return self.runtime
        return self.cache if os.access(self.cache, os.W_OK) else self.runtime

    # Running one step

    def _conf(self, name: str) -> Path:
        return self.checkout / "conf" / name

    def _step(self, title: str, command: list[str]) -> None:
        """Run one program of the set-up: its output to `setup.log`, its time to the user."""
        log = self.runtime / "setup.log"
        started = time.monotonic()
        self.progress(f"  {title} …")
        with log.open("ab") as output:
            start = output.tell()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # The lock goes with this process: nothing may go on writing without it.
                preexec_fn=die_with_parent,
            )
            try:
                code = _count_seconds(title, process)
            except BaseException:
                process.terminate()
                process.wait()
                raise
        if code != 0:
            text = log.read_bytes()[start:].decode("utf-8", "replace")
            raise OperationalError(
                f"set-up of {title.split(',')[0]} failed: {last_error(text)}; the whole output is "
                f"in {log}, the next start tries again"
            )
        self.progress(f"  {title}: {time.monotonic() - started:.0f} s")


def select_packages(lock: str, names: tuple[str, ...]) -> str:
    """Return the lines of a lock file that pin the named packages, with their hashes."""
    kept = []
    keep = False
    for line in lock.splitlines():
        name = re.match(r"([A-Za-z0-9._-]+)==", line)
        if name:
            keep = name[1].lower() in names
        if keep:
            kept.append(line)
    return "\n".join(kept) + "\n"


def wrong_jars(folder: Path, sums: str) -> list[str]:
    """Return what is wrong with the jars in a folder, a few words for each.

    Args:
        folder: In it are those of the jars.
        sums: Lines of `sha256sum`: the hash of a jar, and its path in the folder.
    """
    expected = {
        path: digest for digest, _, path in (one.partition("  ") for one in sums.split("\n"))
    }
    expected.pop("", None)
    found = {
        path.relative_to(folder).as_posix(): _digest(path)
        for one in _JAR_FOLDERS
        for path in folder.glob(f"{one}/*")
    }
    return [
        f"{path} {'is not listed' if path not in expected else 'has another hash'}"
        if path in found
        else f"{path} is missing"
        for path in sorted(expected.keys() | found.keys())
        if expected.get(path) != found.get(path)
    ]


def last_error(output: str) -> str:
    """Return the line of a program's output that tells best why it failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    marked = [line for line in lines if re.match(r"(?i)error\b|server access error", line)]
    return (marked or lines or ["no output"])[-1][:300]


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as exc:
        raise OperationalError(f"cannot read {path}: {exc.strerror}") from exc


def _read_json(path: Path) -> dict[str, str]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _write_json(path: Path, value: dict[str, str]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value, indent=1), encoding="utf-8")
    temporary.replace(path)


@contextmanager
def _held(path: Path, *, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a lock file; the system gives it back however this process ends."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
