"""Ask a process by its Unix socket: one JSON object on a line each way."""

import json
import os
import socket
from pathlib import Path
from typing import Any, Final

from mqlake.errors import OperationalError

ANSWER_SECONDS: Final = 10.0


def connect(path: Path, seconds: float) -> socket.socket:
    """Return a connection; the path may be longer than the 107 bytes that the kernel takes.

    Args:
        path: The socket.
        seconds: Longest time for each of connecting, sending and receiving.

    Raises:
        OSError: No process listens there.
    """
    asking = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        asking.settimeout(seconds)
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            asking.connect(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
    except BaseException:
        asking.close()
        raise
    return asking


def listening(path: Path) -> socket.socket:
    """Return a socket on which its owner alone may connect; the path may be as long as there.

    Raises:
        OSError: It cannot be opened for listening.
    """
    path.unlink(missing_ok=True)
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(found.fileno(), 0o600)  # before anybody can connect: the file gets its mode
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            found.bind(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
        found.listen()
    except BaseException:
        found.close()
        raise
    return found


def ask_balancer(
    path: Path, *, timeout_seconds: float = ANSWER_SECONDS, **question: Any
) -> dict[str, Any]:
    """Ask a running balancer.

    Raises:
        OperationalError: There is none, or it says no.
    """
    try:
        with connect(path, timeout_seconds) as asking:
            asking.sendall(json.dumps(question).encode() + b"\n")
            with asking.makefile("rb") as answers:
                answer: dict[str, Any] = json.loads(answers.readline())
    except (OSError, ValueError) as exc:
        raise OperationalError(
            f"no balancer answers at {path} ({exc}): start one with `mqlake balancer`"
        ) from exc
    if problem := answer.get("problem"):
        raise OperationalError(str(problem))
    return answer
