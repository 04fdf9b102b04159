"""Records of a session's subscriptions: the session's own, or one for each subscription.

Most sessions have few, and one record is all that must be read of them. A session's record is
written again for each change in it; so it holds no more than some, and each further subscription
has a record of its own: to subscribe costs as much with twenty thousand as with forty. A
subscription stays where it is as long as the session has it. Records of releases without records of
subscriptions are read as they are; when such a session is next opened, the excess moves out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_IN_SESSION: Final = 32
MOST_BYTES_IN_SESSION: Final = 4096
"""Bytes of the topic filters."""

MOVED_AT_ONCE: Final = 500
"""From a session of an earlier release, each time that it is opened: they are written together."""


class SubscriptionRecords:
    """Records of the subscriptions of one session, and the changes since they were written.

    Attributes:
        own: The topic filters with records of their own.
        is_session_changed: Something has changed that stands in the session's record.
    """

    __slots__ = ("_bytes", "_changed", "_count", "is_session_changed", "own")

    def __init__(self) -> None:
        self._count = 0
        self._bytes = 0
        self.own: dict[str, None] = {}
        self._changed: dict[str, None] = {}
        self.is_session_changed = False

    def restore(self, in_session: Iterable[str], own: Iterable[str], *, can_move: bool) -> None:
        """Take over how a session stands in the log.

        Args:
            in_session: Filters in its record; one of them that has a record of its own too is to
                lose that.
            own: Filters with records of their own.
            can_move: Whether the excess of the session's record may move out of it.
        """
        moved = 0
        for topic_filter in in_session:
            if can_move and moved < MOVED_AT_ONCE and not self._has_room(topic_filter):
                self.own[topic_filter] = self._changed[topic_filter] = None
                moved += 1
            else:
                self._put(topic_filter, 1)
        kept = set(in_session)
        for topic_filter in own:
            if topic_filter in kept:
                self._changed[topic_filter] = None
            else:
                self.own[topic_filter] = None

    def add(self, topic_filter: str, *, can_have_record: bool) -> None:
        """Choose the record for a new subscription."""
        if topic_filter in self._changed or (
            can_have_record and not self._has_room(topic_filter)
        ):  # its record has not been removed yet
            self.own[topic_filter] = None
        else:
            self._put(topic_filter, 1)

    def remove(self, topic_filter: str) -> None:
        """Let go of a subscription; that is a change."""
        self.change(topic_filter)
        if topic_filter in self.own:
            del self.own[topic_filter]
        else:
            self._put(topic_filter, -1)

    def change(self, topic_filter: str) -> None:
        """Note that a subscription is to be written."""
        if topic_filter in self.own:
            self._changed[topic_filter] = None
        else:
            self.is_session_changed = True

    def take_changed(self) -> list[str]:
        """Return filters whose own records are to be written, or to be removed if not in `own`."""
        if not self._changed:
            return []
        changed, self._changed = list(self._changed), {}
        return changed

    def put_back(self, topic_filters: Iterable[str]) -> None:
        """Note that records of their own could not be written."""
        self._changed.update(dict.fromkeys(topic_filters))

    def _has_room(self, topic_filter: str) -> bool:
        size = self._bytes + len(topic_filter.encode())
        return self._count < MOST_IN_SESSION and size <= MOST_BYTES_IN_SESSION

    def _put(self, topic_filter: str, sign: int) -> None:
        self._count += sign
        self._bytes += sign * len(topic_filter.encode())
