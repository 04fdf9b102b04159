"""Ask a running JVM, as `jcmd` does, without that program: a Java that was trimmed has none."""

import os
import signal
import socket
import time
from pathlib import Path
from typing import Final

from mqlake.errors import OperationalError

_TIMEOUT_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.02


def ask_jvm(pid: int, command: str, timeout_seconds: float = _TIMEOUT_SECONDS) -> str:
    """Return the answer of a JVM to a command.

    Args:
        pid: Process identifier of the JVM, which runs as this user.
        command: Command with its arguments, as `jcmd` takes it.
        timeout_seconds: Longest that each step of the answer may take, in seconds.

    Source: `VirtualMachineImpl.java` and `attachListener_posix.cpp` of OpenJDK 17.

    Raises:
        OperationalError: The JVM does not answer, or refuses the command.
    """
    path = f"/tmp/.java_pid{pid}"  # noqa: S108 - Java's own place for it
    try:
        if not Path(path).exists():
            _begin_to_listen(pid, Path(path))
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_seconds)
            connection.connect(path)
            request = ("1", "jcmd", command, "", "")
            connection.sendall("".join(f"{word}\0" for word in request).encode())
            answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode("utf-8", "replace")
    except OSError as exc:
        raise OperationalError(f"Java, process {pid}, does not answer {command}: {exc}") from exc
    code, _, words = answer.partition("\n")
    if code != "0":
        raise OperationalError(f"Java, process {pid}, refuses {command}: {words.strip()}")
    return words


def _begin_to_listen(pid: int, path: Path) -> None:
    asking = Path(f"/proc/{pid}/cwd/.attach_pid{pid}")
    asking.touch()
    try:
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        os.kill(pid, signal.SIGQUIT)
        while not path.exists():
            os.kill(pid, 0)  # it may have ended
            if time.monotonic() > deadline:
                raise TimeoutError(f"no socket after {_TIMEOUT_SECONDS:g} s")
            time.sleep(_LOOK_SECONDS)
    finally:
        asking.unlink(missing_ok=True)
