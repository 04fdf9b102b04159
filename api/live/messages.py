"""Messages as they come into `mqlake.inbound`: to readers, and into the topics seen lately."""

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from api.live.feed import Feed, Record
from api.live.stream import Event, LiveStream
from api.live.topics import RecentTopics
from api.messages.messages import show_message
from mqlake.errors import InvalidRecord
from mqlake.records.messages import INBOUND, decode_message
from mqlake.topics.matching import TopicFilterTrie

_logger = logging.getLogger(__name__)

BACK_SECONDS: Final = 60.0
"""Messages that came so shortly before the first question are looked at."""
_RECORD_BYTES: Final = 500
"""Beside the payload, about."""


class MessageFeed(Feed):
    """Reads `mqlake.inbound` while a stream is open.

    Attributes:
        topics: Seen since the reading began.
    """

    def __init__(self, servers: str) -> None:
        super().__init__(servers, INBOUND, back_seconds=BACK_SECONDS)
        self.topics = RecentTopics()
        self._streams_lock = threading.Lock()
        self._tries: dict[str, TopicFilterTrie[LiveStream]] = {}

    def add(self, tenant: str, topic_filters: Sequence[str], stream: LiveStream) -> None:
        """Offer a stream each message that any of the filters matches, once."""
        with self._streams_lock:
            trie = self._tries.setdefault(tenant, TopicFilterTrie())
            for topic_filter in topic_filters:
                trie.insert(topic_filter, stream)

    def remove(self, tenant: str, topic_filters: Sequence[str], stream: LiveStream) -> None:
        with self._streams_lock:
            trie = self._tries[tenant]
            for topic_filter in topic_filters:
                trie.remove(topic_filter, stream)
            if not len(trie):
                del self._tries[tenant]

    @property
    def tenants(self) -> list[str]:
        """Return the tenants whose messages have streams."""
        with self._streams_lock:
            return list(self._tries)

    def forget(self) -> None:
        self.topics.begin(time.time_ns() // 1_000_000)

    def receive(self, records: Sequence[Record]) -> None:
        woken: dict[LiveStream, None] = {}
        with self._streams_lock:
            for record in records:
                key = record.key()
                if not key or key[:1] == b"\0":
                    continue  # a barrier, say
                try:
                    tenant, separator, topic_name = key.decode().partition("/")
                except UnicodeDecodeError:
                    continue
                if not separator:
                    continue
                self.topics.note((tenant, topic_name), record)
                trie = self._tries.get(tenant)
                if trie is None or self.is_old(record):
                    continue
                size = _RECORD_BYTES + len(record.value() or b"")
                for stream in dict.fromkeys(trie.match(topic_name)):
                    if stream.offer(record, size):
                        woken[stream] = None
        for stream in woken:
            stream.wake()


def show_record(record: Record, max_payload_bytes: int) -> dict[str, Any] | None:
    """Return a record as a message; None when it is none."""
    try:
        message = decode_message(
            record.key(), record.value(), record.headers() or [], record.timestamp()[1]
        )
    except InvalidRecord as exc:
        _logger.debug("record not shown", extra={"fields": {"reason": str(exc)}})
        return None
    place = (record.partition() or 0, record.offset() or 0)
    return show_message(message, *place, max_payload_bytes=max_payload_bytes)


def message_event(record: Record, max_payload_bytes: int) -> Event:
    return "message", show_record(record, max_payload_bytes) or {}
