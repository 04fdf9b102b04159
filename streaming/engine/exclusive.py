"""One application per data directory, to the last thread of its JVM."""

import fcntl
import os
import time
from pathlib import Path

from mqlake.errors import OperationalError

_LOOK_SECONDS = 0.05


class Lock:
    """An exclusive lock on a file.

    Processes that inherit the descriptor hold the lock too, also when it is taken later; it is free
    when the last of them is gone. So a JVM that outlives its parent for a moment keeps a second one
    off its checkpoints.

    Attributes:
        descriptor: Descriptor of the file.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def try_take(self) -> bool:
        """Take it, unless another process has it; return whether it is ours."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def take(self, timeout_seconds: float) -> None:
        """Take it.

        Raises:
            OperationalError: Another process had it all the time.
        """
        deadline = time.monotonic() + timeout_seconds
        while not self.try_take():
            if time.monotonic() > deadline:
                self.close()
                raise OperationalError(
                    f"another Spark application works in {self._path.parent}; stop it first"
                )
            time.sleep(_LOOK_SECONDS)

    def close(self) -> None:
        """Let go of it, unless others have inherited it."""
        os.close(self.descriptor)
