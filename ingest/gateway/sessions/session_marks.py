"""How far all sessions of a gateway have come: one record a shard, not one for each session."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from ingest.session.client.checkpoint import Before, CheckpointKind, write
from mqlake.records.offsets import have_reached
from mqlake.records.shards import shard_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.gateway.base.context import Context
    from ingest.gateway.log.delivered import Delivered
    from ingest.gateway.sending.progress import ProgressSaver
    from ingest.gateway.sending.session_log import SessionLog
    from ingest.gateway.sessions.client_session import ClientSession
    from ingest.gateway.sharing.share_groups import ShareGroups
    from mqlake.records.shards import Key

MARKS_SECONDS: Final = 1.0
"""How often it is written how far all sessions have come; nothing is repeated for want of it."""


class SessionMarks:
    """The marks of one gateway.

    Args:
        context: Shared by all parts of the gateway.
        log: Takes their records.
        saver: Writes the progress of sessions.
        share_groups: Those that sessions here are members of.
        delivered: How far this gateway has come.
        shards: How many there are.
    """

    def __init__(
        self,
        context: Context,
        log: SessionLog,
        saver: ProgressSaver,
        share_groups: ShareGroups,
        delivered: Delivered,
        shards: int,
    ) -> None:
        self._context = context
        self._log = log
        self._saver = saver
        self._share_groups = share_groups
        self._delivered = delivered
        self._shards = shards
        self._saved_marks: list[int] = []
        self._marks_at = 0.0
        # They wait for the log to have the records before them.
        self._are_waiting = False
        # Those that wait for the gateway to come past an offset.
        self._behind: dict[ClientSession, None] = {}
        # How many sessions with progress are in each shard: only there marks mean something.
        self._in_shards: Counter[int] = Counter()

    def opened(self, key: Key) -> None:
        """Note that a session has progress from now on."""
        self._in_shards[shard_of(*key, self._shards)] += 1

    def closed(self, key: Key) -> None:
        """Note that it has none any more."""
        shard = shard_of(*key, self._shards)
        self._in_shards[shard] -= 1
        if not self._in_shards[shard]:
            del self._in_shards[shard]

    def wait_for_offsets(self, session: ClientSession) -> None:
        """Look at a session again when the gateway has come past its floor or its histories."""
        self._behind[session] = None

    def forget(self, session: ClientSession) -> None:
        """Look at a session no more: it is served no more."""
        self._behind.pop(session, None)

    def save(self) -> None:
        """Write changes, and how far all sessions have come."""
        write(
            Before.MARKS,
            {
                CheckpointKind.MEMBERSHIP: self._share_groups.save_all,
                CheckpointKind.PROGRESS: self._save_progress_if_due,
                CheckpointKind.MARKS: self._write_marks,
            },
        )

    def _save_progress_if_due(self) -> bool:
        """Write the progress of all sessions; False when no marks are to follow."""
        next_offsets = self._delivered.next_offsets()
        if next_offsets == self._saved_marks:
            return False
        for session in list(self._behind):
            if self._has_come_past(session, next_offsets):
                del self._behind[session]
        now = self._context.clock.monotonic()
        is_due = now - self._marks_at >= MARKS_SECONDS and not self._are_waiting
        return is_due and self._saver.save_all()

    def _write_marks(self) -> None:
        """Write how far all have come by now, once the log has the records before.

        One of these may time out: marks that passed it would lose the messages that it tells of.
        """
        next_offsets, next_delivery = self._delivered.next_offsets(), self._delivered.next
        shards = self._in_shards.keys() | self._share_groups.shards()

        def write_marks() -> None:
            self._are_waiting = False
            self._log.save_marks(shards, [offset - 1 for offset in next_offsets], next_delivery)
            self._saved_marks = next_offsets
            self._marks_at = self._context.clock.monotonic()

        self._are_waiting = True
        self._share_groups.after_all_saved(lambda: self._log.after_progress(write_marks))

    def _has_come_past(self, session: ClientSession, next_offsets: Sequence[int]) -> bool:
        """Note histories and floor that deliveries have passed; return whether none is left."""
        is_changed = session.settle_histories(next_offsets)
        if session.floor is not None and have_reached(next_offsets, session.floor):
            session.floor = None
            is_changed = True
        if is_changed and session.progress is not None:
            session.progress.touch()
        return session.floor is None and not any(one.is_live for one in session.histories())
