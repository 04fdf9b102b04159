"""Write files that a power failure leaves whole: the old one or the new one, never a part.

Written bytes are in the kernel's memory for half a minute, and a new name may reach the disk before
its file. So the file is synced before it gets its name, and the folder after.
"""

import os
from pathlib import Path


def write_durably(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Replace a file; it is on the disk when this returns. Folders are made as needed.

    Args:
        path: Its name.
        data: All of it.
        mode: Its permissions, less the process's umask.

    Raises:
        OSError: It cannot be written; the old one is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        with open(os.open(temporary, flags, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Return when a file, or the names in a folder, are on the disk.

    Raises:
        OSError: They cannot be written.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
