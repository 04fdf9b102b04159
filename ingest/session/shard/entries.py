"""The entry of a shard for one client, and the store of entries."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from ingest.session.shard.stored_subscriptions import SubscriptionStore
from mqlake.errors import InvalidRecord
from mqlake.records.sessions import decode_session
from mqlake.records.shards import NO_EPOCH, Run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mqlake.records.sessions import SessionRecord
    from mqlake.records.shards import Claim, Key

_FILTER: Final = b'"filter":'
"""In a session's record once for each subscription in it."""
_MORE: Final = re.compile(rb'"more":([0-9]+)')
"""Those that have records of their own."""

UNKNOWN_RUN: Final = Run("", "")
"""Holder of a session of which only progress has been read."""


@dataclass(slots=True)
class ShardEntry:
    """State of one client in a shard.

    Invariants: `claim` is None unless there is a holder; `granted` is None unless there is one.
    """

    epoch: int = NO_EPOCH
    """Epoch of the last record that counted."""
    holder: Run | None = None
    granted: Claim | None = None
    """By which the holder has it, until a record of the session under its epoch has been read."""
    claim: Claim | None = None
    """The newest one, which waits for the holder to let go."""
    session: bytes | None = None
    """The last value that counted; None: there is no session, or none that is written."""
    session_epoch: int = NO_EPOCH
    """Under which it was written: that of the holder before, while `granted` is there."""
    is_proven: bool = True
    """All holders before `epoch` are known to be over. Else compaction has removed the proof."""
    closed_at_ms: int | None = None
    """When the holder let go, by the log's time."""
    due_at_ms: int | None = None
    """When the will or the expiry of an absent client's session is due, or a fence is let go of.
    Counts while the session has no holder."""

    def copy(self) -> ShardEntry:
        """Return another one: at a third of the cost of `dataclasses.replace`."""
        return ShardEntry(
            self.epoch,
            self.holder,
            self.granted,
            self.claim,
            self.session,
            self.session_epoch,
            self.is_proven,
            self.closed_at_ms,
            self.due_at_ms,
        )


class ShardStore(SubscriptionStore[ShardEntry], Protocol):
    """Store of a shard's entries: embedded on disk in a gateway."""

    def put(self, key: Key, entry: ShardEntry) -> None: ...
    def delete(self, key: Key) -> None:
        """Forget the entry and its progress; subscriptions stay until their records end."""
        ...

    def progress(self, key: Key) -> bytes | None: ...
    def put_progress(self, key: Key, value: bytes | None) -> None: ...

    def advance(self, key: Key, epoch: int, value: bytes) -> bool:
        """Put progress if the session is held under this epoch; return whether it is."""
        ...

    def holders(self) -> Iterable[Run]:
        """Return which runs hold sessions."""
        ...

    def held_by(self, run: Run, limit: int | None = None) -> list[Key]: ...
    def waiting(self) -> list[Key]:
        """Return for whose session a claim waits."""
        ...

    def due(self, now_ms: int, limit: int) -> list[Key]:
        """Return clients with something due, the earliest first."""
        ...

    def count(self) -> int:
        """Return how many sessions are stored."""
        ...

    def absent_subscriptions(self, tenant: str) -> int:
        """Return how many subscriptions a tenant's sessions without a holder have."""
        ...


def absent_subscriptions(entry: ShardEntry) -> int:
    """Return how many subscriptions a session has whose client is away; 0 of one that is held."""
    session = entry.session
    if session is None or entry.holder is not None:
        return 0
    # Without reading all of it, which takes ten times as long: no text in it has a bare quote.
    more = _MORE.search(session)
    return session.count(_FILTER) + (0 if more is None else int(more[1]))


def session_of(entry: ShardEntry) -> SessionRecord | None:
    """Return the session of an entry; end of its connection and time of its will are the log's.

    It was read in outline. One that turns out not to be a session is as none: it cannot be served.
    """
    if entry.session is None:
        return None
    try:
        session = decode_session(entry.session)
    except InvalidRecord:
        return None
    if entry.closed_at_ms is not None:
        session.disconnected_at_ms = entry.closed_at_ms
        if session.will is not None:
            session.will_at_ms = entry.closed_at_ms + session.will.will_delay_interval * 1000
    return session
