"""Listening sockets: one for each address that a host name means, and the file of a Unix socket."""

import contextlib
import socket
import stat
from pathlib import Path
from typing import Any, Final

from mqlake.errors import OperationalError

BACKLOG: Final = 4096
_PROBE_TIMEOUT_SECONDS: Final = 1.0


def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Listen on a port of every address that a host has; the empty host has all, IPv4 and IPv6.

    Raises:
        OperationalError: The host is unknown, or one of its addresses cannot be opened.
    """
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        opened: list[socket.socket] = []
        with contextlib.ExitStack() as on_failure:
            for family, _, _, _, address in dict.fromkeys(found):
                listener = _open(family, address, is_one_of_many=len(found) > 1)
                if listener is not None:
                    on_failure.enter_context(listener)
                    opened.append(listener)
            if not opened:
                raise OSError("none of its addresses exists on this machine")
            on_failure.pop_all()
    except OSError as exc:
        shown = f"[{host}]" if ":" in host else host
        reason = exc.strerror or str(exc)
        raise OperationalError(f"cannot listen on {shown}:{port}: {reason}") from exc
    return opened


def _open(family: int, address: tuple[Any, ...], *, is_one_of_many: bool) -> socket.socket | None:
    """Return a socket that listens; None where the machine lacks a family and another will do."""
    try:
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        if is_one_of_many:
            return None
        raise
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # IPv4 clients come by the IPv4 socket, with an address that looks like one.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def open_unix_socket(file: Path, mode: int) -> socket.socket:
    """Listen on a socket file; one that a process left behind at its end is replaced.

    Raises:
        OperationalError: The file is in use, something else, or cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX)
    try:
        if file.exists() and not _is_left_over(file):
            raise OperationalError(
                f"cannot listen on {file}: it is no socket, or another process listens there"
            )
        file.unlink(missing_ok=True)
        listener.bind(str(file))
        file.chmod(mode)  # before any client can connect
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as exc:
        listener.close()
        raise OperationalError(f"cannot listen on {file}: {exc.strerror or exc}") from exc
    except OperationalError:
        listener.close()
        raise
    return listener


def _is_left_over(file: Path) -> bool:
    if not stat.S_ISSOCK(file.stat().st_mode):
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_TIMEOUT_SECONDS)
        try:
            probe.connect(str(file))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
