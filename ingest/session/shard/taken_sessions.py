"""Clean sessions that the owner of a shard has begun without a claim.

While nothing is stored under its name, the owner begins such a session without a record, and
remembers that it has. A gateway that claims it is given it once the owner has let go of it. When
the shard changes its owner, the one before claims sessions that it has begun so, and leaves behind
that; a client that came meanwhile has it instead. An owner that others may have taken for silent
serves no client before it has read their records, and before the next owner has answered these
claims: that one may have begun the same sessions itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ingest.session.shard.effects import ShardRecord
from mqlake.records.shards import claim_key, encode_claim, stamp_headers

if TYPE_CHECKING:
    from mqlake.records.shards import Claim, Key, Run


class FreeSessions(Protocol):
    """Holds the sessions that a gateway has begun without a claim, as owner of their shard."""

    def let_go(self, key: Key) -> None:
        """End the connection of one that is claimed; `Shard.untake` when that is done."""
        ...

    def claimed(self, key: Key, number: int, epoch: int) -> None:
        """Note that the claim of one was read: it is free no more, if it is still there."""
        ...


class TakenSession(NamedTuple):
    """A session that was begun without a claim."""

    number: int
    """Number of the claim that would be its own."""
    principal: str | None
    """Principal, as in a claim."""


class _NobodyIsFree:
    def let_go(self, key: Key) -> None: ...
    def claimed(self, key: Key, number: int, epoch: int) -> None: ...


NOBODY_IS_FREE: Final[FreeSessions] = _NobodyIsFree()


class TakenSessions:
    """Those of one shard.

    Attributes:
        begun: They, by client.
        going_on: Clients whose sessions go on under such a claim, which no owner has answered.
        free: Holds the sessions.
    """

    def __init__(self) -> None:
        self.begun: dict[Key, TakenSession] = {}
        self.going_on: set[Key] = set()
        self.free: FreeSessions = NOBODY_IS_FREE
        # Numbers of the claims that follow after all, and were not read yet.
        self._claimed: set[int] = set()

    def claims(self, me: Run) -> list[ShardRecord]:
        """Return the claims that follow, for this gateway owns the shard no more."""
        stamp = stamp_headers(me.incarnation)
        taken = list(self.begun.items())
        self._claimed.update(one.number for _, one in taken)
        return [
            ShardRecord(
                claim_key(*key),
                encode_claim(
                    me, one.number, clean_start=True, goes_on=True, principal=one.principal
                ),
                stamp,
            )
            for key, one in taken
        ]

    def claim_read(
        self, key: Key, claim: Claim, me: Run, owner: Run | None, *, is_held: bool
    ) -> None:
        """Take a claim that the shard has read.

        Args:
            key: Key of the session.
            claim: Claim of this gateway, or of another.
            me: This run of this gateway.
            owner: Run that owns the shard.
            is_held: Whether the session had a holder before it.
        """
        if claim.run == me and claim.number in self._claimed:
            self._claimed.discard(claim.number)
            self.free.claimed(key, claim.number, claim.epoch)
            if is_held:
                self.free.let_go(key)
        elif key in self.begun and owner != me:
            self.free.let_go(key)  # it came before ours, and the next owner gives it away
