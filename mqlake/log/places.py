"""In how many partitions of `mqlake.inbound` messages are, though an operator has added some.

A topic stays in its partition: its order, cursors of stored sessions and barriers of routes go by
that. Kafka itself lets anybody add partitions, takes none away, and clients put keys into all.
"""

import asyncio
from typing import NamedTuple, Protocol

from mqlake.errors import LogError
from mqlake.log.admin import REQUEST_SECONDS, partition_counts
from mqlake.records import INBOUND, OUTPUTS


class Places(NamedTuple):
    """Partitions of `mqlake.inbound`.

    Attributes:
        used: It was made with so many; those of higher numbers stay empty.
        present: It has so many.
    """

    used: int
    present: int


class KeepsPlaces(Protocol):
    """A writer of messages."""

    def keep_places(self, log_topic: str, places: Places) -> None: ...


def places_of(inbound: int, outputs: int) -> Places:
    """Return places by numbers of partitions.

    Args:
        inbound: Of `mqlake.inbound`.
        outputs: Of `mqlake.outputs`, which is made with as many; 0 where it is not there.
    """
    return Places(min(inbound, outputs or inbound), inbound)


def find_places(bootstrap_servers: str, timeout_seconds: float = REQUEST_SECONDS) -> Places:
    """Ask the log; blocks.

    Raises:
        LogError: It does not answer in time, or has no `mqlake.inbound`.
    """
    counts = partition_counts(bootstrap_servers, (INBOUND, OUTPUTS), timeout_seconds)
    if not counts[INBOUND]:
        raise LogError(f"log topic {INBOUND} does not exist", definite=True)
    return places_of(counts[INBOUND], counts[OUTPUTS])


async def keep_places(writer: KeepsPlaces, bootstrap_servers: str) -> None:
    """Have a writer put messages where they were before; see `find_places`."""
    writer.keep_places(INBOUND, await asyncio.to_thread(find_places, bootstrap_servers))
