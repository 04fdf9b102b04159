"""Compile the routing classes with the Janino inside pyspark: no JDK, no build tool.

In a JVM of its own, so that the jar exists before the application's JVM starts: its classes then
have one class loader there, hence one route table, whatever session or query uses them.
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
from streaming.jvm.jars import PYSPARK_JARS
from streaming.jvm.process import java_executable

SOURCES: Final = Path(__file__).parent
_COMPILER: Final = "org.codehaus.commons.compiler.samples.CompilerDemo"
_COMPILER_JARS: Final = ("janino-*.jar", "commons-compiler-*.jar")
_TIMEOUT_SECONDS: Final = 180
"""Five on two processors that have nothing else to do."""


def build_routing_jar(target_dir: Path, jars: list[Path]) -> Path:
    """Return the jar of the routing classes; compiled once for each state of the source.

    Args:
        target_dir: Where the jar is kept; its name carries the hash of the source.
        jars: From `extra_jars`; the Kafka client is among them.

    Raises:
        OperationalError: The source does not compile.
    """
    return build_jar("mqlake-routing", sorted(SOURCES.glob("*.java")), target_dir, jars)


def build_jar(name: str, sources: list[Path], target_dir: Path, jars: list[Path]) -> Path:
    """Return the jar of some classes; compiled once for each state of the source.

    Args:
        name: What the jar's name begins with.
        sources: Each holds a class of its name.
        target_dir: Where the jar is kept; its name carries the hash of the source.
        jars: What the classes need beside pyspark's.

    Raises:
        OperationalError: The source does not compile.
    """
    digest = hashlib.sha256(b"\0".join(source.read_bytes() for source in sources))
    jar = target_dir / f"{name}-{digest.hexdigest()[:16]}.jar"
    if jar.is_file():
        return jar
    target_dir.mkdir(parents=True, exist_ok=True)
    # All of them: a class is read with all that it mentions.
    class_path = [*_glob(("*.jar",)), *map(str, jars)]
    with tempfile.TemporaryDirectory(dir=target_dir) as classes:
        command = [
            *(java_executable(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
            *("-cp", os.pathsep.join(_glob(_COMPILER_JARS)), _COMPILER),
            *("-g:source,lines,vars", "-d", classes, "-classpath", os.pathsep.join(class_path)),
            *map(str, sources),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as exc:
            raise OperationalError(
                f"{name}: the classes were not compiled in {_TIMEOUT_SECONDS} s"
            ) from exc
        compiled = sorted(Path(classes).rglob("*.class"))
        # The compiler exits with 0 whatever it found; Java may say other things on standard error.
        missing = {source.stem for source in sources} - {path.stem for path in compiled}
        if done.returncode or missing or "CompileException" in done.stderr:
            raise OperationalError(f"{name}: the classes do not compile: {done.stderr.strip()}")
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in compiled:
                archive.write(path, path.relative_to(classes))
        write_durably(jar, content.getvalue())
    return jar


def _glob(patterns: tuple[str, ...]) -> list[str]:
    return [str(jar) for pattern in patterns for jar in sorted(PYSPARK_JARS.glob(pattern))]
