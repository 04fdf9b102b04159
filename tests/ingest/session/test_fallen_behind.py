"""Every message is sent once, whenever a session falls behind and whenever its record is read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ingest.session.client.fallen_behind import first_unread, recorded
from ingest.session.client.outgoing import OutgoingMessages
from mqlake.records.offsets import at

PARTITIONS = 2


def test_reading_begins_with_the_message_that_found_no_room() -> None:
    assert first_unread([10, 20], None, 0, 9) == [9, 20]


def test_what_was_given_before_the_gateway_came_to_it_is_not_read_again() -> None:
    assert first_unread([10, 20], [15, 5], 1, 19) == [15, 19]
    assert first_unread([10, 20], [15, 30], 1, 19) == [15, 30]


def test_a_record_begins_with_what_waits() -> None:
    assert recorded([9, 20], {}) == [9, 20]
    assert recorded([9, 20], {0: 5}) == [5, 20]
    assert recorded([9, 20], {1: 21}) == [9, 20]


@given(
    st.lists(st.integers(0, PARTITIONS - 1), max_size=30),
    st.integers(1, 3),
    st.integers(0, 4),
    st.lists(st.booleans(), max_size=60),
)
def test_no_message_is_left_out_or_sent_twice(
    came: list[int], window: int, max_queued: int, acknowledges: list[bool]
) -> None:
    """At each moment: sent, and what the record says is to be read, are all messages, each once."""
    outgoing: OutgoingMessages[tuple[int, int]] = OutgoingMessages(
        window=window, max_queued=max_queued
    )
    next_offsets = [0] * PARTITIONS
    cursor: list[int] | None = None
    sent: list[tuple[int, int]] = []
    packet_ids: list[int] = []
    turns = iter(acknowledges)

    def send(packet_id: int, message: tuple[int, int]) -> None:
        sent.append(message)
        packet_ids.append(packet_id)

    def check() -> None:
        waiting: dict[int, int] = {}
        for partition, offset in outgoing.waiting():
            waiting.setdefault(partition, offset)
        start = recorded(cursor or next_offsets, waiting)
        if cursor is None:
            start = [min(one, waiting.get(n, one)) for n, one in enumerate(next_offsets)]
        to_be_read = {
            (partition, offset)
            for partition in range(PARTITIONS)
            for offset in range(at(start, partition), next_offsets[partition])
        }
        everything = {(p, o) for p in range(PARTITIONS) for o in range(next_offsets[p])}
        assert len(set(sent)) == len(sent)
        assert not to_be_read & set(sent)
        assert to_be_read | set(sent) == everything

    for partition in came:
        message = (partition, next_offsets[partition])
        next_offsets[partition] += 1
        if cursor is None:
            offered = outgoing.offer(message, 1, writable=True)
            if isinstance(offered, int):
                send(offered, message)
            elif offered.name == "DROPPED":
                cursor = first_unread(next_offsets, None, *message)
        check()
        while next(turns, False):
            if packet_ids:
                outgoing.receive_puback(packet_ids.pop(0))
            while (ready := outgoing.take_ready()) is not None:
                send(ready.packet_id, ready.message)
            # Reading: a message when the queue is empty and the window has room.
            for read in range(PARTITIONS if cursor is not None else 0):
                assert cursor is not None
                while outgoing.has_room and cursor[read] < next_offsets[read]:
                    unread = (read, cursor[read])
                    cursor[read] += 1
                    packet_id = outgoing.offer(unread, 1, writable=True)
                    assert isinstance(packet_id, int)
                    send(packet_id, unread)
            if cursor == next_offsets:
                cursor = None  # live
            check()
