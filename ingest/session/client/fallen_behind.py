"""From where a session goes on that cannot take all that comes: its queue had no room for more.

    sent ──► in flight ──► waiting in the queue ──► ≥ the first that found no room: in the log

Its queue is sent as before. What comes behind that is read from where it is stored, when the queue
is empty and as fast as the client takes it, as for a client that was away. A crash loses the queue:
so as long as something waits the record says that reading begins with that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqlake.records.offsets import at, latest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def first_unread(
    next_offsets: Sequence[int], floor: Sequence[int] | None, partition: int, offset: int
) -> list[int]:
    """Return per partition the first offset that was neither sent nor queued.

    Args:
        next_offsets: From where on the gateway has not been brought messages.
        floor: Up to where the session, or the subscription, was given messages before that.
        partition: Partition of the message that found no room.
        offset: Offset of that message.
    """
    cursor = latest(next_offsets, floor)
    cursor[partition] = max(offset, 0 if floor is None else at(floor, partition))
    return cursor


def recorded(cursor: Sequence[int], waiting: Mapping[int, int]) -> list[int]:
    """Return the cursor for a record: all before it was sent.

    Nothing is read while something waits, so what waits is before all that was read since.

    Args:
        cursor: Per partition the first offset that was neither sent nor queued.
        waiting: Partition -> offset of the first message that waits.
    """
    return [min(offset, waiting.get(partition, offset)) for partition, offset in enumerate(cursor)]
