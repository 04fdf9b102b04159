"""A disk of the tool's own: an ext4 file system in a file, that can lose power and fill up.

Power loss is the file system's own shutdown (`EXT4_IOC_SHUTDOWN`, without a flush of its journal):
from that moment nothing goes to the disk any more, and data that was written and not synced is gone
when it is mounted again. The disk keeps all that reached it: it has no cache of its own.
"""

import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path
from typing import Final

from resilience.errors import TargetError
from resilience.machines.switch import missing_privilege

MEBIBYTE: Final = 1024 * 1024
UNMOUNT_SECONDS: Final = 20.0

_SHUTDOWN: Final = 0x8004587D
_NO_FLUSH: Final = 2
_JOURNAL_SECONDS: Final = 5
"""How often ext4 commits by itself; its own default, so that as much is lost as with users."""

_BALLAST: Final = ".ballast"


def missing() -> str:
    """Return why there can be no such disk here; empty if there can."""
    for program in ("mkfs.ext4", "mount", "umount"):
        if _path(program) is None:
            return f"no program {program} (Debian: apt install e2fsprogs mount)"
    if not Path("/dev/loop-control").exists():
        return "the kernel has no loop devices"
    return missing_privilege()


class Volume:
    """One disk.

    Args:
        image: The file that holds it; made again.
        mount_point: A folder; it is made.
    """

    def __init__(self, image: Path, mount_point: Path, mebibytes: int) -> None:
        self.mount_point = mount_point
        self._image = image
        self._mebibytes = mebibytes
        self._mounted = False
        self._is_bound = False

    def start(self) -> None:
        """Make and mount it.

        Raises:
            TargetError: Something is missing here.
        """
        if reason := missing():
            raise TargetError(f"no disk that can fail: {reason}")
        with self._image.open("wb") as file:
            file.truncate(self._mebibytes * MEBIBYTE)
        # All blocks are for users, and nothing is left to be initialised in the background.
        lazy = "lazy_itable_init=0,lazy_journal_init=0,nodiscard"
        _run("mkfs.ext4", "-q", "-m", "0", "-E", lazy, str(self._image))
        self.mount_point.mkdir(exist_ok=True)
        # So that it is unmounted in namespaces, too, that others make meanwhile: one that held the
        # disk after its end would give it to the next mount as it was left.
        _run("mount", "--bind", str(self.mount_point), str(self.mount_point))
        _run("mount", "--make-shared", str(self.mount_point))
        self._is_bound = True
        self.mount()

    def mount(self) -> None:
        options = f"loop,commit={_JOURNAL_SECONDS}"
        _run("mount", "-t", "ext4", "-o", options, str(self._image), str(self.mount_point))
        self._mounted = True

    def cut(self) -> None:
        """Let nothing go to the disk any more, from now on."""
        descriptor = os.open(self.mount_point, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _NO_FLUSH))
        finally:
            os.close(descriptor)

    def unmount(self) -> None:
        """Unmount it; programs that were killed may hold it for a moment.

        Raises:
            TargetError: It is still in use after `UNMOUNT_SECONDS`.
        """
        if not self._mounted:
            return
        end = time.monotonic() + UNMOUNT_SECONDS
        while True:
            try:
                _run("umount", str(self.mount_point))
            except TargetError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
            else:
                break
        self._mounted = False

    def fill(self) -> None:
        """Leave no free block."""
        with (self.mount_point / _BALLAST).open("wb") as file:
            room = os.fstatvfs(file.fileno())
            free = room.f_bavail * room.f_frsize
            while free > 0:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, free)
                except OSError:
                    free //= 2
                    if free < room.f_frsize:
                        return

    def empty(self) -> None:
        """Give back the room that `fill` took."""
        (self.mount_point / _BALLAST).unlink(missing_ok=True)

    def stop(self) -> None:
        self.unmount()
        if self._is_bound:
            _run("umount", str(self.mount_point))
            self._is_bound = False
        self._image.unlink(missing_ok=True)


def _path(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin")


def _run(program: str, *words: str) -> None:
    command = [_path(program) or program, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise TargetError(f"{' '.join(command)}: {done.stderr.strip()}")
