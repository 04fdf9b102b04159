"""Ports of the target's parts."""

import contextlib
import random
import socket
from typing import Final

from resilience.errors import TargetError

CONSECUTIVE: Final = 3
"""Free ports in a row for each name."""


def free_port() -> int:
    """Return a port that is free together with the ones after it.

    Below the range from which Linux takes the ports of outgoing connections (32768 on).
    """
    for _ in range(200):
        base = random.randrange(20_000, 32_760)  # noqa: S311 - not a secret
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(base, base + CONSECUTIVE):
                listener = stack.enter_context(socket.socket())
                listener.bind(("127.0.0.1", port))
            return base
    raise TargetError("no free ports between 20000 and 32760")
