"""Gateways that write of a session which is theirs no more, and do not know it.

Such a record does not count. Whatever has kept its gateway from knowing, a machine that was frozen
say: the owner of the shard tells it that the session is lost, so that it ends the connection of its
client and acknowledges nothing more. A gateway that has let go of the session by itself meanwhile
passes over that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from ingest.session.shard import acts

if TYPE_CHECKING:
    from ingest.session.shard.effects import Work
    from mqlake.records.shards import Key, Run, Stamp

TELL_AGAIN_MS: Final = 2_000
"""Pause until a gateway that goes on writing gets the answer again, by the log's time."""

MOST_TOLD: Final = 10_000
"""Sessions whose gateways got the answer lately."""


class ShardOfWriters(Protocol):
    """Implemented by `ingest.session.ownership.Shard`, which describes it."""

    is_active: bool

    def act(self, work: Work) -> None: ...


class LateWriters:
    """Those of one shard.

    Args:
        shard: Whose owner tells them.
    """

    def __init__(self, shard: ShardOfWriters) -> None:
        self._shard = shard
        # Gateway -> its last run: those before have ended, or it could not have begun.
        self._incarnations: dict[str, str] = {}
        # Client -> epoch, and when its gateway got the answer.
        self._told: dict[Key, tuple[int, int]] = {}

    def seen(self, run: Run) -> None:
        """Note a run that holds a session, or claims one."""
        self._incarnations[run.gateway] = run.incarnation

    def wrote(self, key: Key, stamp: Stamp, at_ms: int) -> None:
        """Take a record of a session, or of a part of it, that does not count."""
        if not self._shard.is_active or stamp.owner is not None:
            return
        runs = self._incarnations.items()
        gateway = next((name for name, incarnation in runs if incarnation == stamp.by), None)
        if gateway is None:
            return
        epoch, told_at_ms = self._told.get(key, (None, 0))
        if epoch == stamp.epoch and at_ms - told_at_ms < TELL_AGAIN_MS:
            return
        if len(self._told) >= MOST_TOLD:
            self._told.clear()
        self._told[key] = stamp.epoch, at_ms
        self._shard.act(acts.ask(gateway, acts.LOST, key, stamp.epoch))
