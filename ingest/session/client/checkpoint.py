"""The order in which records and packets must become durable, in this module alone.

A crash may come between any two records, and every reader of the log then must find a state that is
true, if not the newest. So a record that relies on others stands behind them in the log, and a
packet leaves when the log has the state that it tells of:

- *CONNACK* says that the session is held, and whether it is present: a full claim has that, else
  the session's record, behind its progress: or the next holder would begin where no message was.
  Nothing of its client is heard before one of the two is in the log; behind a full claim the
  session's record is handed over before its client is heard, so all else stands behind.
- *SUBACK*: retained messages and history that the client is owed are part of the progress; it
  stands before the record that has the subscription: the session's, or one of its own.
- A *QoS 2 packet* (`SaveQueue`) leaves when the step before it is in the progress: no exchange is
  begun again that the client has finished, none is thought finished that it has not seen. Of a
  share group, the group's shard names the message's client before that: by the member's record, and
  when the log has that one by the membership's without the message. A crash before the progress
  leaves it to others.
- *Release*: the session's last record is the one that lets others have it, so it is the last.
- *End*: a session ends with its own tombstone, the last: while it stands, so do its parts.
- *Marks* move the cursor of every session whose last record says that it has nothing on its way,
  and of every membership: messages that they pass must stand in a record before them, and the log
  must have that one, as it may time out while the marks do not.

In the progress of a session with shared subscriptions messages have packet identifiers only; their
subscriptions are in its member record, which therefore precedes it. A record of progress that
stands alone is written thousands of times a second: `ClientSession.next_progress` keeps that order
by itself. Records of a shard's owner are in the order of its act (`ingest.session.shard.acts`).
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Item = TypeVar("Item")


class CheckpointKind(Enum):
    """Kinds of records."""

    MEMBER = auto()
    """A session's part in a share group."""
    MEMBERSHIP = auto()
    """A gateway's part in a share group."""
    PROGRESS = auto()
    SUBSCRIPTION = auto()
    """Those of a session that have records of their own. One that moves out of the session's record
    is written before that is written without it."""
    SESSION = auto()
    MARKS = auto()

    __hash__ = object.__hash__  # by identity: that of `Enum` is a call for each look-up


class Before(Enum):
    """Packets and records that rely on several records."""

    CONNACK = auto()
    SUBACK = auto()
    RELEASE = auto()
    END = auto()
    MARKS = auto()

    __hash__ = object.__hash__


ORDER: Final[Mapping[Before, tuple[CheckpointKind, ...]]] = {
    Before.CONNACK: (
        CheckpointKind.MEMBER,
        CheckpointKind.PROGRESS,
        CheckpointKind.SUBSCRIPTION,
        CheckpointKind.SESSION,
    ),
    Before.SUBACK: (
        CheckpointKind.MEMBER,
        CheckpointKind.PROGRESS,
        CheckpointKind.SUBSCRIPTION,
        CheckpointKind.SESSION,
    ),
    Before.RELEASE: (
        CheckpointKind.MEMBER,
        CheckpointKind.PROGRESS,
        CheckpointKind.SUBSCRIPTION,
        CheckpointKind.SESSION,
    ),
    Before.END: (CheckpointKind.MEMBER, CheckpointKind.PROGRESS, CheckpointKind.SESSION),
    Before.MARKS: (CheckpointKind.MEMBERSHIP, CheckpointKind.PROGRESS, CheckpointKind.MARKS),
}
"""In which order records are handed to the log, which keeps it."""


def write(before: Before, writers: Mapping[CheckpointKind, Callable[[], object]]) -> bool:
    """Hand records to the log in their order.

    Args:
        before: The packet or record that relies on them.
        writers: Hand over the records of one kind, those that there are; one that returns False has
            not, and records that would rely on it are not written.

    Returns:
        Whether the log takes all of them.
    """
    return all(writers[kind]() is not False for kind in ORDER[before] if kind in writers)


class Saved(Protocol):
    """Tells when the log has the state as it is now."""

    def after_saved(self, proceed: Callable[[], None]) -> None: ...


class SaveQueue(Generic[Item]):
    """Handles items in their order; some wait until progress is saved, others behind them.

    Args:
        handle: Takes one item.
    """

    __slots__ = ("_handle", "_items")

    def __init__(self, handle: Callable[[Item], None]) -> None:
        self._handle = handle
        # With each item whether it waits for a record of its own; None in the place of one dropped.
        self._items: deque[tuple[Item | None, bool]] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Item, progress: Saved | None) -> None:
        """Take an item, to be handled after its predecessors.

        Args:
            item: For the handler.
            progress: The log must have it as it is now; None when nothing depends on that.
        """
        if progress is None and not self._items:
            self._handle(item)
            return
        self._items.append((item, progress is not None))
        if progress is not None:
            progress.after_saved(self._proceed)

    def take_all(self) -> list[Item]:
        """Take out items that still wait."""
        items = [item for item, _ in self._items if item is not None]
        self._items.clear()
        return items

    def drop(self, item: Item) -> None:
        """Do not handle an item that waits, this very object; others keep their places."""
        self._items = deque((None if one is item else one, waits) for one, waits in self._items)

    def _proceed(self) -> None:
        """Handle an item whose record the log has, and items behind it up to the next such."""
        items = self._items
        if not items:  # they were taken out
            return
        self._handle_first(items)
        while items and not items[0][1]:
            self._handle_first(items)

    def _handle_first(self, items: deque[tuple[Item | None, bool]]) -> None:
        item, _ = items.popleft()
        if item is not None:
            self._handle(item)
