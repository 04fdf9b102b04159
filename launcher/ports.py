"""TCP ports: which are free, and which to take when none is set."""

import os
import random
import socket
from typing import Final

# Below the range from which Linux takes the ports of outgoing connections (32768 on), so that none
# of those can sit on a port between our choosing it and the process's listening on it.
_CHOICE: Final = range(20_000, 32_768)

_claims: Final[list[int]] = []
"""File descriptors that are open until the process ends; sockets would complain of that."""


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether a listener could be opened there now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        # As every server here does; without it a port whose last connections linger looks taken.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(1)
        except OSError:
            return False
    return True


def claim(port: int) -> bool:
    """Return whether a port of 127.0.0.1 is free, and this process's from now on.

    Between choosing a port and listening on it lies the start of a server. So that no other
    process chooses it meanwhile, it is marked by a name that the kernel knows until this process
    ends: an abstract one, see unix(7).
    """
    if not is_free(port):
        return False
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(f"\0mqlake-port-{port}")
    except OSError:
        mark.close()
        return False
    _claims.append(mark.detach())
    return True


def free_ports(count: int) -> list[int]:
    """Claim that many ports of 127.0.0.1.

    Raises:
        OSError: After a thousand tries there are not enough.
    """
    found: list[int] = []
    for port in random.sample(_CHOICE, 1000):
        if claim(port):
            found.append(port)
            if len(found) == count:
                return found
    raise OSError(f"found {len(found)} free ports of 127.0.0.1, expected {count}")


def consecutive_free_ports(count: int) -> int:
    """Claim that many neighbouring ports of 127.0.0.1; return the first.

    Raises:
        OSError: After a thousand tries there are not enough.
    """
    choice = _CHOICE[: len(_CHOICE) - count + 1]
    for first in random.sample(choice, min(1000, len(choice))):
        before = len(_claims)
        if all(map(claim, range(first, first + count))):
            return first
        while len(_claims) > before:
            os.close(_claims.pop())
    raise OSError(f"found no {count} free ports of 127.0.0.1 in a row")
