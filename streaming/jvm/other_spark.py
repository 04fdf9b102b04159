"""Compiles our Java with another Spark, to show what a new version would cost.

`python -m streaming.jvm.other_spark JARS FOLDER…` compiles all sources with the jars of the folders
(those of the other Spark, Delta and the Kafka connector) in place of ours, keeps no class, and
prints what breaks by class. `JARS` holds our compiler, as `.runtime/jars` does.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from streaming.jvm.compiler import SOURCES, TIMEOUT_SECONDS, release_options
from streaming.jvm.jars import compiler_jar
from streaming.jvm.process import java_executable
from streaming.jvm.vocabulary import write_source

_ERROR: Final = re.compile(r"(?P<file>\S.*\.java):(?P<line>\d+): error: (?P<problem>.*)")
"""A line of the compiler with `-Xemacs`."""


def breaks(
    sources: Iterable[Path], jars_dir: Path, folders: Iterable[Path]
) -> dict[Path, list[str]]:
    """Return by source what does not compile there: `LINE: PROBLEM`.

    Args:
        sources: All of them.
        jars_dir: Holds the compiler.
        folders: Their jars are the class path, in order.

    Raises:
        OperationalError: The compiler is not there, or no Java is.
    """
    java = java_executable()
    class_path = [str(jar) for folder in folders for jar in sorted(folder.glob("*.jar"))]
    command = [
        java,
        "-jar",
        str(compiler_jar(jars_dir)),
        *release_options(java),
        "-encoding",
        "UTF-8",
        "-proc:none",
        "-warn:none",
        "-Xemacs",
        "-proceedOnError",
        "-d",
        "none",
        "-cp",
        os.pathsep.join(class_path),
        *map(str, sources),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    found: dict[Path, list[str]] = {}
    for match in map(_ERROR.match, done.stderr.splitlines()):
        if match:
            problem = f"{match['line']}: {match['problem']}"
            found.setdefault(Path(match["file"]), []).append(problem)
    assert found or done.returncode == 0, done.stderr
    return found


def _main(jars_dir: Path, folders: list[Path]) -> int:
    with tempfile.TemporaryDirectory() as written:
        sources = [*sorted(SOURCES.rglob("*.java")), write_source(Path(written))]
        found = breaks(sources, jars_dir, folders)
    for source, problems in found.items():
        print(f"{'.'.join(source.with_suffix('').parts[-3:])}: {len(problems)}")  # noqa: T201
        for problem in problems:
            print(f"  {problem}")  # noqa: T201
    print(f"{len(found)} of {len(sources)} classes do not compile")  # noqa: T201
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1]), [Path(folder) for folder in sys.argv[2:]]))
