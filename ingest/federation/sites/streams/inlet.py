"""Intake of a site: each message of its neighbours once into its log.

A message is had when the log has it, not before: until then copies of it wait for the same answer.
So a message acknowledged to a neighbour is durable here, and one that a process had not appended
when it died comes again. A new run learns of messages had from the checkpoint and, behind it, from
the log itself: the records bear the envelopes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from ingest.federation.envelope import InvalidEnvelope, SiteMessage
from ingest.federation.sites.streams.log_messages import site_message_of
from ingest.federation.sites.streams.streams import StreamKey, Streams
from mqlake.records.federation import Offsets
from mqlake.records.messages import LogRecord

Acknowledge = Callable[[], None]
NONE_PENDING: Final = 2**64
"""Above all numbers."""


class InletVerdict(Enum):
    """Verdict on a message of a neighbour."""

    NEW = auto()
    """Append it, then call `appended`."""
    DUPLICATE = auto()
    """It is in the log: acknowledge it."""
    PENDING = auto()
    """A copy is on its way into the log; it is acknowledged with that."""
    FULL = auto()
    """It would make one gap too many: keep it, or let it come again, and acknowledge nothing."""


@dataclass(slots=True)
class InletCounters:
    received: int = 0
    """Messages of neighbours, copies included."""
    duplicates: int = 0
    echoes: int = 0
    """Its own."""
    appended: int = 0
    refused: int = 0
    """Topics that the link may not bring here."""
    malformed: int = 0
    for_groups: int = 0
    """Messages that were handed over to this site for a share group."""
    unclaimed: int = 0
    """Messages that this site handed over, and that came back and have no member left."""
    outdated: int = 0
    """Retained messages that were not the latest of their topic: they are not retained here."""


class Inlet:
    """All messages of other sites that one site has.

    Args:
        streams: Numbers that it has had.
        read: Up to where of its log that is known.
    """

    def __init__(self, streams: Streams, read: Offsets) -> None:
        self.streams: Final = streams
        self.read: Final = read
        self.counters: Final = InletCounters()
        self._pending: dict[tuple[StreamKey, int], list[Acknowledge]] = {}

    @property
    def pending(self) -> int:
        """Messages on their way into the log."""
        return len(self._pending)

    @property
    def begun(self) -> int:
        """Messages that this run has begun to append."""
        return self.counters.appended + len(self._pending)

    def recover(self, records: Iterable[LogRecord]) -> None:
        """Learn from the log the messages that a run before has appended."""
        for record in records:
            try:
                message = site_message_of(record)
            except InvalidEnvelope:
                message = None  # nothing that a federator has written
            if message is not None:
                self._note(message)
            self.read[record.partition] = record.offset + 1

    def take(
        self, message: SiteMessage, acknowledge: Acknowledge, most_gaps: int | None = None
    ) -> InletVerdict:
        """Hear of a message.

        Args:
            message: It.
            acknowledge: Called when it is durable, if not at once.
            most_gaps: Most gaps of its stream, with those that it makes; None: any number.
        """
        key = stream_of(message)
        if self.streams.has(key, message.sequence):
            self.counters.duplicates += 1
            return InletVerdict.DUPLICATE
        waiting = self._pending.get((key, message.sequence))
        if waiting is not None:
            self.counters.duplicates += 1
            waiting.append(acknowledge)
            return InletVerdict.PENDING
        # Each that is on its way may make a gap, too.
        if most_gaps is not None and not self.streams.has_room(
            key, message.after, most_gaps - len(self._pending)
        ):
            return InletVerdict.FULL
        self._pending[key, message.sequence] = [acknowledge]
        return InletVerdict.NEW

    def close(self, key: StreamKey, last: int) -> None:
        """Hear that no neighbour brings a number of a stream up to this one any more."""
        stream = self.streams.get(key)
        if stream is not None:
            # One on its way into the log may come again, if it does not get there.
            stream.close(min(last, self.first_pending(key) - 1))

    def first_pending(self, key: StreamKey) -> int:
        """Return the lowest number of a stream on its way into the log."""
        return min((number for one, number in self._pending if one == key), default=NONE_PENDING)

    def has_had(self, message: SiteMessage) -> bool:
        """Tell whether a message is in the log or on its way there."""
        key, sequence = stream_of(message), message.sequence
        return self.streams.has(key, sequence) or (key, sequence) in self._pending

    def hear_offer(self, number: tuple[StreamKey, int], acknowledge: Acknowledge) -> InletVerdict:
        """Hear that a neighbour has a message; of one that is new `Bodies` hears."""
        if self.streams.has(*number):
            return InletVerdict.DUPLICATE
        waiting = self._pending.get(number)
        if waiting is None:
            return InletVerdict.NEW
        waiting.append(acknowledge)
        return InletVerdict.PENDING

    def appended(self, message: SiteMessage, partition: int, offset: int) -> None:
        """Hear where the log has a message."""
        self._note(message)
        self.read[partition] = max(offset + 1, self.read.get(partition, 0))
        self.counters.appended += 1
        for acknowledge in self._pending.pop((stream_of(message), message.sequence)):
            acknowledge()

    def _note(self, message: SiteMessage) -> None:
        self.streams.add(stream_of(message), message.after, message.sequence)


def stream_of(message: SiteMessage) -> StreamKey:
    """Return the stream of a message between logs."""
    return StreamKey(message.key.origin, message.key.epoch, message.partition)
