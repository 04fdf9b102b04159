"""The class by which the embedded log's broker knows its one login: `OneLogin.java`.

python -m launcher.log.broker_login FOLDER

compiles it into a folder, in a process of its own: the supervisor does without the modules that
this loads.
"""

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from launcher.paths import KAFKA_JARS
from mqlake.durable import write_durably
from mqlake.errors import OperationalError
from streaming.jvm.class_archive import can_write

SOURCE: Final = Path(__file__).with_name("OneLogin.java")
HANDLER_CLASS: Final = "mqlake.broker.OneLogin"
_COMPILE_SECONDS: Final = 200.0


def broker_login_jar(directory: Path) -> Path:
    """Return the jar with the class; compiled when there is none of this source and this Kafka.

    Args:
        directory: Folder of the log, for the jar if it cannot be kept beside the other jars.

    Raises:
        OperationalError: It does not compile.
    """
    shared = KAFKA_JARS.parent / "classes"
    jar = _jar_in(shared if can_write(shared) else directory)
    if not jar.is_file():
        command = (sys.executable, "-P", "-m", __name__, str(jar.parent))
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as exc:
            raise OperationalError("the log's class was not compiled in time") from exc
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no output"]
            raise OperationalError(f"the log's class does not compile: {lines[-1]}")
    return jar


def main(folder: Path) -> None:
    """Compile the class.

    Raises:
        OperationalError: It does not compile.
    """
    from streaming.jvm.compiler import build_jar

    jar = _jar_in(folder)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        built = build_jar("broker", [SOURCE], Path(made), KAFKA_JARS.parent, (_kafka_clients(),))
        write_durably(jar, built.read_bytes())


def _jar_in(folder: Path) -> Path:
    made_from = _kafka_clients().name.encode() + SOURCE.read_bytes()
    return folder / f"mqlake-broker-{hashlib.sha256(made_from).hexdigest()[:16]}.jar"


def _kafka_clients() -> Path:
    found = next(KAFKA_JARS.glob("kafka-clients-*.jar"), None)
    if found is None:
        raise OperationalError(f"{KAFKA_JARS} holds no Kafka; start once with: bin/mqlake up")
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
