"""Compile our Java with the Eclipse compiler, one jar that runs on any Java: no JDK, no build tool.

In a JVM of its own, so that the jar exists before the application's JVM starts: its classes then
have one class loader there, hence one route table for all sessions and queries.
"""

import hashlib
import io
import os
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from mqlake.durable import write_durably
from mqlake.errors import OperationalError
from streaming.jvm.jars import PYSPARK_JARS, compiler_jar, extra_jars
from streaming.jvm.process import java_executable
from streaming.jvm.vocabulary import write_source

SOURCES: Final = Path(__file__).parents[1] / "java"
RELEASE: Final = "17"
"""Release of Java: the oldest that mqlake runs on (`launcher.java`)."""
_STRICT: Final = (
    "-warn:none",
    "-err:+suppress,raw,unchecked,uselessTypeCheck,allOver-ann,unusedImport,unusedLocal,unusedPrivate",
)
"""Held in all our sources: no raw type, no unchecked or useless cast, nothing that is not used."""
TIMEOUT_SECONDS: Final = 180
"""Three on two processors that have nothing else to do."""


def build_routing_jar(target_dir: Path, jars_dir: Path) -> Path:
    """Return the jar of all our classes; compiled once for each state of the source.

    Args:
        target_dir: Folder of the jar, whose name carries the hash of the source.
        jars_dir: Holds the jars that pyspark lacks, and the compiler.

    Raises:
        OperationalError: The source does not compile, or the compiler is not there.
    """
    with tempfile.TemporaryDirectory() as written:
        sources = [*sorted(SOURCES.rglob("*.java")), write_source(Path(written))]
        return build_jar("mqlake-routing", sources, target_dir, jars_dir)


def build_jar(
    name: str,
    sources: list[Path],
    target_dir: Path,
    jars_dir: Path,
    beside: tuple[Path, ...] = (),
) -> Path:
    """Return the jar of some classes; compiled once for each state of the source.

    Args:
        name: Beginning of the jar's name.
        sources: All of them.
        target_dir: Folder of the jar, whose name carries the hash of all its inputs.
        jars_dir: As in `build_routing_jar`.
        beside: Other jars that the classes need.

    Raises:
        OperationalError: The source does not compile, or the compiler is not there.
    """
    java = java_executable()
    compiler = compiler_jar(jars_dir)
    # All of them: a class is read with all that it mentions.
    class_path = [*sorted(PYSPARK_JARS.glob("*.jar")), *extra_jars(jars_dir), *beside]
    options = (*release_options(java), "-encoding", "UTF-8", "-g", "-proc:none", *_STRICT)
    made_from = [*(jar.name for jar in (compiler, *class_path)), *options]
    digest = hashlib.sha256("\0".join(made_from).encode())
    for source in sources:
        digest.update(b"\0" + source.read_bytes())
    jar = target_dir / f"{name}-{digest.hexdigest()[:16]}.jar"
    if jar.is_file():
        return jar
    target_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target_dir) as classes:
        command = [
            java,
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            "-jar",
            str(compiler),
            *options,
            "-d",
            classes,
            "-cp",
            os.pathsep.join(map(str, class_path)),
            *map(str, sources),
        ]
        _compile(name, command)
        write_durably(jar, _packed(Path(classes)))
    return jar


def release_options(java: str) -> tuple[str, ...]:
    """Return the options that make classes for `RELEASE`.

    With the interfaces of that release where this Java knows them: a runtime alone leaves out the
    file that has them, and the compiler fails on it instead of saying so.
    """
    home = Path(os.path.realpath(java)).parent.parent
    if (home / "lib" / "ct.sym").is_file():
        return ("--release", RELEASE)
    return ("-source", RELEASE, "-target", RELEASE)


def _compile(name: str, command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as exc:
        raise OperationalError(
            f"{name}: the classes were not compiled in {TIMEOUT_SECONDS} s"
        ) from exc
    if done.returncode:
        raise OperationalError(f"{name}: the classes do not compile: {done.stderr.strip()}")


def _packed(classes: Path) -> bytes:
    """Return a jar of all that lies in a folder."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(classes.rglob("*.class")):
            archive.write(path, path.relative_to(classes))
    return content.getvalue()
