"""Mosquitto on this machine, to compare with; it keeps sessions on disk."""

import socket
import subprocess
import time
from getpass import getuser
from pathlib import Path
from typing import Final

from launcher.child import die_with_parent
from launcher.ports import free_ports
from mqlake.errors import OperationalError

EXECUTABLE: Final = Path("/usr/sbin/mosquitto")
START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 0.02


def check_installed() -> None:
    """Refuse a machine without Mosquitto.

    Raises:
        OperationalError: There is no Mosquitto here.
    """
    if not EXECUTABLE.is_file():
        raise OperationalError(f"no {EXECUTABLE}: install it (Debian: apt install mosquitto)")


def settings_of(port: int) -> str:
    """Return the settings of a broker on this port that drops no message that waits."""
    # A broker that root starts would change to a user who cannot read or write its folder.
    return (
        f"listener {port} 127.0.0.1\nallow_anonymous true\nuser {getuser()}\n"
        "max_inflight_messages 0\nmax_queued_messages 0\nset_tcp_nodelay true\n"
    )


def await_listening(port: int, process: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Wait until a broker takes connections.

    Raises:
        OperationalError: It has ended, or does not within the time.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline or process.poll() is not None:
                raise OperationalError("Mosquitto does not start") from None
            time.sleep(LOOK_SECONDS)
        else:
            return


class Mosquitto:
    """One broker without limits of waiting messages.

    Args:
        folder: Folder of its settings and its store; it exists.

    Raises:
        OperationalError: There is no Mosquitto here.
    """

    def __init__(self, folder: Path) -> None:
        check_installed()
        (self._port,) = free_ports(1)
        self._settings = folder / "mosquitto.conf"
        kept = f"persistence true\npersistence_location {folder}/\n"
        self._settings.write_text(settings_of(self._port) + kept, encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it, and wait until it listens.

        Raises:
            OperationalError: It does not.
        """
        self._process = subprocess.Popen(
            (str(EXECUTABLE), "-c", str(self._settings)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        await_listening(self._port, self._process, START_SECONDS)

    def stop(self) -> None:
        """Stop it, and wait until it has written its sessions."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_SECONDS)
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()
