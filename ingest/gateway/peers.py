"""The gateways of the site: each says twice a second that it is there.

Heard of through `mqlake.gateways`, and only the time since the last word counts, by our own clock:
clocks of machines differ. Our own word comes back the same way. While it does not, the log is away
or we were not running: nobody can be heard then, and nobody is dead for that.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mqlake.errors import LogError
from mqlake.log.contract import BEGINNING, LogRecord, LogWriter
from mqlake.records import GATEWAYS, RECORD_VERSION, Headers

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqlake.clock import Clock
    from mqlake.log.contract import LogReader

logger = logging.getLogger(__name__)

BEAT_SECONDS: Final = 0.5
DEAD_SECONDS: Final = 3.0
"""A gateway that has not been heard of for so long is dead."""

DEAF_SECONDS: Final = 2.0
"""When our own word has not come back for so long, time stops; with a beat less than dead."""

_HEADERS: Final[Headers] = []


@dataclass(slots=True)
class _Peer:
    incarnation: str
    heard_at: float


class Peers:
    """Who is there, and whether it is this gateway's turn to care for a dead one's sessions.

    Args:
        writer: Appends our own word.
        reader: Not started yet.
        gateway: Name of this gateway.
        incarnation: Of this gateway.
        clock: Its monotonic time counts.

    Attributes:
        on_deaf: Called when we hear ourselves again after others may have taken us for dead.
    """

    def __init__(
        self, writer: LogWriter, reader: LogReader, gateway: str, incarnation: str, clock: Clock
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._gateway = gateway
        self._incarnation = incarnation
        self._clock = clock
        self._started_at = clock.monotonic()
        self._spoke_at = -BEAT_SECONDS
        self._has_left = False
        self._echo_at = self._started_at
        self._peers: dict[str, _Peer] = {}
        self.on_deaf: Callable[[], None] = lambda: None

    async def open(self) -> None:
        """Begin to listen.

        Raises:
            LogError: The log cannot be read.
        """
        self._started_at = self._echo_at = self._clock.monotonic()
        await self._reader.start(GATEWAYS, {0: BEGINNING}, self._receive, self._report)

    async def close(self) -> None:
        await self._reader.close()

    def beat(self, figures: dict[str, Any]) -> None:
        """Say that this gateway is there, when it is time to and it has not left."""
        now = self._clock.monotonic()
        if self._has_left or now - self._spoke_at < BEAT_SECONDS:
            return
        self._spoke_at = now
        value = {
            "v": RECORD_VERSION,
            "gateway": self._gateway,
            "incarnation": self._incarnation,
            "at": self._clock.now_ms(),
            **figures,
        }
        self._append(json.dumps(value).encode())

    def leave(self) -> None:
        """Say that this gateway is gone."""
        self._has_left = True
        self._append(None)

    @property
    def is_deaf(self) -> bool:
        """Whether we have not heard ourselves for so long that others may take us for dead."""
        return self._clock.monotonic() - self._echo_at >= DEAF_SECONDS

    @property
    def are_there(self) -> bool:
        """Whether there is any other gateway."""
        return any(self.is_alive(name, peer.incarnation) for name, peer in self._peers.items())

    def is_alive(self, gateway: str, incarnation: str) -> bool:
        """Tell whether that run of a gateway has been heard of lately."""
        if gateway == self._gateway:
            return incarnation == self._incarnation
        peer = self._peers.get(gateway)
        return (
            peer is not None
            and peer.incarnation == incarnation
            and self._now() - peer.heard_at < DEAD_SECONDS
        )

    def is_ours(self, gateway: str, incarnation: str) -> bool:
        """Tell whether this gateway has to care for the sessions of a run of a gateway.

        Its own and those of its own earlier runs; those of a dead one when it is the first by name
        of all that live, and has listened long enough to know.
        """
        if gateway == self._gateway:
            return True
        if self.is_alive(gateway, incarnation):
            return False
        if self._now() - self._started_at < DEAD_SECONDS:
            return False
        # A new run of the same gateway cares for what the old one left.
        candidates = [
            name for name, peer in self._peers.items() if self.is_alive(name, peer.incarnation)
        ]
        if gateway in candidates:
            return False
        return all(self._gateway < name for name in candidates)

    def _now(self) -> float:
        """Return the time up to which others would have been heard."""
        now = self._clock.monotonic()
        return now if now - self._echo_at < DEAF_SECONDS else self._echo_at

    def _hear_ourselves(self, now: float) -> None:
        """Let time go on; after a silence of all, who was alive has most of its time again."""
        if now - self._echo_at >= DEAF_SECONDS:
            self.on_deaf()
            for name, peer in self._peers.items():
                if self.is_alive(name, peer.incarnation):
                    peer.heard_at = max(peer.heard_at, now - BEAT_SECONDS)
            self._started_at += now - self._echo_at
        self._echo_at = now

    def _append(self, value: bytes | None) -> None:
        try:
            self._writer.append(
                GATEWAYS, self._gateway.encode(), value, _HEADERS, _ignore, partition=0
            )
        except LogError as error:
            logger.debug("not heard", extra={"fields": {"reason": str(error)}})

    def _receive(self, records: list[LogRecord]) -> None:
        now = self._clock.monotonic()
        for record in records:
            name = (record.key or b"").decode(errors="replace")
            if name == self._gateway:
                self._hear_ourselves(now)
                continue
            if record.value is None:
                self._peers.pop(name, None)
                continue
            try:
                found = json.loads(record.value)
                incarnation = str(found["incarnation"])
                at_ms = int(found["at"])
            except (ValueError, KeyError, TypeError) as exc:
                logger.warning("gateway record ignored", extra={"fields": {"reason": str(exc)}})
                continue
            known = self._peers.get(name)
            # At the start old words are read: how old they are only their own clock can say.
            age = max(0.0, (self._clock.now_ms() - at_ms) / 1000) if known is None else 0.0
            self._peers[name] = _Peer(incarnation, now - min(age, DEAD_SECONDS))

    def _report(self, error: LogError) -> None:
        logger.warning("gateways cannot be heard", extra={"fields": {"reason": str(error)}})


def _ignore(_partition: int, _offset: int, _error: LogError | None) -> None:
    pass
