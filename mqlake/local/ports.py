"""TCP ports: which are free, and which to take when nobody cares."""

import random
import socket
from contextlib import ExitStack
from typing import Final

# Below the range from which Linux takes the ports of outgoing connections (32768 on), so that none
# of those can sit on a port between our choosing it and the process's listening on it.
_CHOICE: Final = range(20_000, 32_768)


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


def free_ports(count: int) -> list[int]:
    """Return that many different ports of 127.0.0.1 on which nobody listens.

    Raises:
        OSError: After a thousand tries there are not enough.
    """
    found: list[int] = []
    with ExitStack() as held:
        for port in random.sample(_CHOICE, 1000):
            listener = held.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
            if len(found) == count:
                return found
    raise OSError(f"found {len(found)} free ports of 127.0.0.1, expected {count}")


def consecutive_free_ports(count: int) -> int:
    """Return the first of that many neighbouring ports of 127.0.0.1 on which nobody listens.

    Raises:
        OSError: After a thousand tries there are not enough.
    """
    choice = _CHOICE[: len(_CHOICE) - count + 1]
    for port in random.sample(choice, min(1000, len(choice))):
        if all(is_free(port + offset) for offset in range(count)):
            return port
    raise OSError(f"found no {count} free ports of 127.0.0.1 in a row")
