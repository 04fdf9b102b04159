"""One application per data directory, to the last thread of its JVM."""

import fcntl
import os
import time
from pathlib import Path

from mqlake.errors import OperationalError


def hold(path: Path, timeout_seconds: float) -> int:
    """Take an exclusive lock and return the file descriptor that holds it.

    Processes that inherit the descriptor hold the lock too; it is free when the last of them is
    gone. So a JVM that outlives its parent for a moment keeps a second one off its checkpoints.

    Raises:
        OperationalError: Somebody else held it all the time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise OperationalError(
                    f"another Spark application works in {path.parent}; stop it first"
                ) from None
            time.sleep(0.05)
        else:
            return descriptor
