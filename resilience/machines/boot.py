"""The boot of a machine: after a power failure programs see another one."""

import uuid
from pathlib import Path
from typing import Final

_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_SHOW: Final = f'mount --bind "$0" {_BOOT_ID} && exec "$@"'


class Boot:
    """A boot identifier (proc(5)) that is seen on one machine alone.

    Args:
        path: File that has it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self) -> None:
        """Boot, again if it has: programs that are started from now on see another identifier."""
        self._path.write_text(f"{uuid.uuid4()}\n", encoding="ascii")

    def prefix(self) -> list[str]:
        """Return the beginning of a command that is to see it."""
        # Of mounts that come and go outside it still sees all, and holds none of them.
        namespace = ["unshare", "--mount", "--propagation", "slave"]
        return [*namespace, "/bin/sh", "-c", _SHOW, str(self._path)]
