"""The 128-bit message identifier: sortable by time, unique across processes and restarts.

Big-endian, most significant first:

    48 bits  milliseconds since 2020-01-01 UTC (enough until the year 10889)
     8 bits  datacenter
    16 bits  machine
    24 bits  process
    32 bits  sequence
"""

import os
import secrets
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from socket import gethostname
from struct import Struct
from typing import Final

from mqlake.clock import Clock

EPOCH_MS: Final = 1_577_836_800_000  # 2020-01-01T00:00:00Z
_PAIR: Final = Struct(">QQ")


class MessageIdentifiers:
    """Makes the identifiers of one process.

    The time in them never goes back while the process lives. The sequence starts at random and
    counts on, so that a restart with the same process id and a clock set back repeats none.
    """

    def __init__(
        self, clock: Clock, *, datacenter: int, machine: int, process: int | None = None
    ) -> None:
        if not 0 <= datacenter < 1 << 8:
            raise ValueError(f"datacenter is {datacenter}, expected 0 to 255")
        if not 0 <= machine < 1 << 16:
            raise ValueError(f"machine is {machine}, expected 0 to 65535")
        self._clock = clock
        self._high = datacenter << 8 | machine >> 8
        process = (os.getpid() if process is None else process) & 0xFF_FFFF
        self._low = (machine & 0xFF) << 56 | process << 32
        self._sequence = secrets.randbits(32)
        self._last_ms = 0

    def next(self, now_ms: int | None = None) -> bytes:
        """Return the next identifier, 16 bytes; `now_ms` is the time when the caller has it."""
        ms = (self._clock.now_ms() if now_ms is None else now_ms) - EPOCH_MS
        if ms > self._last_ms:
            self._last_ms = ms
        else:
            ms = self._last_ms
        self._sequence = sequence = (self._sequence + 1) & 0xFFFF_FFFF
        return _PAIR.pack(ms << 16 | self._high, self._low | sequence)


def identifier_ms(message_id: bytes) -> int:
    """Return when an identifier was made, UTC epoch (its process's view of it)."""
    ms: int = _PAIR.unpack(message_id)[0] >> 16
    return ms + EPOCH_MS


def identifier_time(message_id: bytes) -> datetime:
    """Return the same as a time.

    Raises:
        ValueError: It is beyond the year 9999, so it is none that was made.
    """
    return datetime.fromtimestamp(identifier_ms(message_id) / 1000, tz=UTC)


def machine_number() -> int:
    """Return 16 bits that tell machines apart: from the machine id, else the host name."""
    try:
        name = Path("/etc/machine-id").read_text(encoding="ascii").strip() or gethostname()
    except OSError:
        name = gethostname()
    return int.from_bytes(blake2b(name.encode(), digest_size=2).digest(), "big")
