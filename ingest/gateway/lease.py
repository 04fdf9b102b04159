"""Whether a gateway may act: its heartbeat has come back from the log, so others have heard it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqlake.clock import Clock

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS: Final = 0.5
SILENT_SECONDS: Final = 3.0
"""A gateway that has not been heard of for so long owns no shards: others take them over. That
costs it nothing; its sessions stay its own until its lease is over."""

SURE_SECONDS: Final = SILENT_SECONDS - HEARTBEAT_SECONDS
"""When our own heartbeat is missing for so long, others may own our shards before we know it."""


class Lease:
    """Whether this gateway may act for its sessions and shards: others know that it is there.

    Args:
        clock: Its monotonic time counts.
        seconds: How long a heartbeat that has come back counts, from when it was sent.
        on_lost: Called once when that time is over.

    Attributes:
        silences: How often that time was over when a heartbeat came back.
    """

    def __init__(self, clock: Clock, seconds: float, on_lost: Callable[[], None]) -> None:
        self._clock = clock
        self.seconds = seconds
        self._on_lost = on_lost
        self._until = self._writes_until = clock.monotonic() + seconds
        self._is_confirmed = True
        self._is_sure = True
        self.silences = 0

    def holds(self) -> bool:
        if self._is_confirmed and self._clock.monotonic() >= self._until:
            self._is_confirmed = False
            logger.warning(
                "this gateway was not heard of, nothing is delivered",
                extra={"fields": {"lease_seconds": self.seconds}},
            )
            self._on_lost()
        return self._is_confirmed

    def may_deliver(self) -> bool:
        """Tell whether no client of this gateway can be another one's by now."""
        return self.is_sure() and self.holds()

    def is_in_time(self) -> bool:
        """Tell whether others hear this gateway now, even after a silence."""
        return self._clock.monotonic() < self._until

    def is_certain(self) -> bool:
        """Tell whether others hear this gateway for long enough to come that a record is written.

        Until then no other takes over its shards.
        """
        return self._clock.monotonic() < self._writes_until - self.seconds + SILENT_SECONDS / 2

    def is_sure(self) -> bool:
        """Tell whether this gateway knows of each owner that has come after it.

        Others act for its shards when they have not heard it for a while. So once that may have
        been so, the answer is no until it has read their records (`assure`).
        """
        if self._is_sure and not self.is_heard():
            self._is_sure = False
        return self._is_sure

    def is_heard(self) -> bool:
        """Tell whether others cannot take this gateway for silent."""
        return self._clock.monotonic() < self._until - self.seconds + SURE_SECONDS

    def assure(self) -> None:
        """Note that the records of others from this gateway's silence have been read."""
        self._is_sure = True

    def renew(self, said_at: float, *, can_write: bool = True) -> None:
        """Note that a heartbeat sent at a time has come back.

        Args:
            said_at: By the clock of the lease.
            can_write: It came through the queue through which all else goes.
        """
        self.holds()  # that the time was over is not to be missed
        self.is_sure()
        self.silences += not self.is_in_time()
        self._until = max(self._until, said_at + self.seconds)
        if can_write:
            self._writes_until = max(self._writes_until, said_at + self.seconds)

    def confirm(self) -> None:
        """Act again: the acts of others meanwhile are known."""
        self._is_confirmed = True
