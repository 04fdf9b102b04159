"""Points 5.0 clients to the gateway that owns their shard: there no hop is added to CONNECT.

A client may ignore it, or have nowhere else to go; and two gateways may name different owners of a
shard while one comes or goes. So a client that is back within `AGAIN_SECONDS` is served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqlake.records.shards import shard_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.session.placement import ShardPlacement
    from mqlake.clock import Clock
    from mqlake.records.shards import Key

AGAIN_SECONDS: Final = 60.0
MAX_REDIRECTED: Final = 10_000
"""Clients remembered; with more of them on their way the others are served where they are."""


class Redirecting:
    """Says where a client is to go (5.0: 4.11).

    Args:
        me: Name of this gateway.
        places: Returns the placement of each shard; none while that is not known.
        address: Returns the address for clients of a gateway's listener of a kind, "" when it is
            unknown.
        clock: Its monotonic time counts.
    """

    def __init__(
        self,
        me: str,
        places: Callable[[], list[ShardPlacement]],
        address: Callable[[str, str], str],
        clock: Clock,
    ) -> None:
        self._me = me
        self._places = places
        self._address = address
        self._clock = clock
        self._redirected: dict[Key, float] = {}  # until when, the first to expire first

    def elsewhere(self, key: Key, listener_kind: str) -> str:
        """Return the Server Reference for a client that connects; "": it is served here."""
        places = self._places()
        if not places:
            return ""
        now = self._clock.monotonic()
        redirected = self._redirected
        while redirected and (oldest := next(iter(redirected))) and redirected[oldest] <= now:
            del redirected[oldest]
        if redirected.pop(key, None) is not None:
            return ""
        owner = places[shard_of(*key, len(places))].owner
        if owner == self._me or len(redirected) >= MAX_REDIRECTED:
            return ""
        address = self._address(owner, listener_kind)
        if address:
            redirected[key] = now + AGAIN_SECONDS
        return address
