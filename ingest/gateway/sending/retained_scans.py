"""The retained messages that one session is owed: which are next, and where they come from.

Shard by shard, a shard in the order of its topics: from this gateway's own copy, else page by page
from a gateway that has one. Without a wildcard there is one shard. Nothing is asked for before the
client has room for it; of other gateways' messages no more than a page is kept here, and little of
the shards that come next.

A message from the offset on at which the subscription began to count comes live, and is left out.
Messages that wait already go first. [MQTT5-3.3.1-9] [MQTT311-3.3.1-6]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from ingest.gateway.retained.retained import to_outbound
from ingest.gateway.store.scanning import just_after
from mqlake.records.messages import message_key
from mqlake.records.offsets import at, latest
from mqlake.records.retained import partitions_of
from mqlake.topics.names import is_system

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from ingest.gateway.base.outbound import OutboundMessage
    from ingest.gateway.log.delivered import Delivered
    from ingest.gateway.log.lease import Lease
    from ingest.gateway.retained.retained import Retained
    from ingest.gateway.retained.retained_questions import Question, RetainedQuestions
    from ingest.gateway.retained.system_topics import SystemTopics
    from mqlake.records.progress import RetainedScan
    from mqlake.records.retained import RetainedMessage

RETAINED_PAGE: Final = 100
"""Messages taken from a store in one turn of the event loop, for one client."""

PAGE_BYTES: Final = 64 * 1024
"""Payloads and properties of a page, the last of them beyond."""

AHEAD: Final = 3
"""Shards that are asked while the one before them is sent."""

AHEAD_PAGE: Final = 32
AHEAD_BYTES: Final = 16 * 1024
"""Most that each of them may give."""

SHARDS_AT_ONCE: Final = 8
"""Shards of this gateway's own that are looked at in one turn of the loop."""

SCAN_RETRY_SECONDS: Final = 0.1
"""Until it is looked again whether a copy here is new enough, and this gateway heard of."""

MOST_WAIT_SECONDS: Final = 1.0
"""Until it is looked again whether a client owes nothing for messages sent to it."""


class Recipient(Protocol):
    """Implemented by `ingest.gateway.sending.sending.Sender`, which describes it."""

    tenant: str
    client_id: str

    def retained_room(self, qos: int) -> int: ...
    def send_retained(self, message: OutboundMessage, scan: RetainedScan) -> bool: ...
    def retained_sent(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RetainedSources:
    """Sources of retained messages, for all clients of a gateway.

    Attributes:
        loop: Event loop of the gateway.
        own: The copies that are here.
        questions: Ask the gateways that have others.
        system_topics: System topics of the gateway.
        lease: Lease of this gateway's name.
        delivered: How far this gateway has come.
        shard_of: Returns the shard of a message's key.
        charge: Charges a client for messages sent to it; returns in how many seconds it owes none.
    """

    loop: asyncio.AbstractEventLoop
    own: Retained
    questions: RetainedQuestions
    system_topics: SystemTopics
    lease: Lease
    delivered: Delivered
    shard_of: Callable[[bytes], int]
    charge: Callable[[str, str, int], float]


class RetainedScans:
    """Retained messages that one session is still owed.

    Args:
        sources: Sources of the messages.
        recipient: Recipient of the session.
    """

    __slots__ = (
        "_asking",
        "_floor",
        "_is_due",
        "_next",
        "_owed",
        "_questions",
        "_recipient",
        "_scans",
        "_sent",
        "_sources",
    )

    def __init__(self, sources: RetainedSources, recipient: Recipient) -> None:
        self._sources = sources
        self._recipient = recipient
        # Scans that wait for the router, and those being sent.
        self._owed: list[RetainedScan] = []
        self._scans: list[RetainedScan] = []
        # Questions for one of them, mostly the first: the shard that is sent and those after it,
        # and how much of the first page was sent.
        self._asking: RetainedScan | None = None
        self._questions: list[Question] = []
        self._next = 0
        self._is_due = False
        self._floor: Sequence[int] | None = None
        self._sent = 0  # in this turn

    def owe(self, scan: RetainedScan) -> None:
        """Note a subscription's retained messages as owed, also after a crash.

        They are pending like any other message of the session (5.0: 4.1, 3.1.1: 4.1). The log has
        the subscription's barriers, so others can be asked while these are on their way.
        """
        self._owed.append(scan)
        if self._scans or self._questions or is_system(scan.topic_filter):
            return
        shards = self._shards(scan)
        is_here = self._sources.own.is_complete(scan.shard)
        if not is_here and self._recipient.retained_room(scan.qos):
            self._ask_shards(scan, shards)

    def restore(self, scan: RetainedScan) -> None:
        """Take a scan owed to a session that comes back; it goes on when the client is there."""
        self._scans.append(scan)

    def caught_up(self, floor: Sequence[int]) -> None:
        """Note up to where the session was given missed messages: copies here may be behind."""
        self._floor = floor

    def send(self, scan: RetainedScan) -> None:
        """Begin with an owed scan, as fast as the client takes it."""
        if scan in self._owed:
            self._owed.remove(scan)
            self._scans.append(scan)
            self.go_on()

    def forget(self, topic_filter: str) -> None:
        """Send no more for a filter that was unsubscribed [MQTT5-3.10.4-2]."""
        if self._asking is not None and self._asking.topic_filter == topic_filter:
            self.close_questions()
        self._scans = [one for one in self._scans if one.topic_filter != topic_filter]
        self._owed = [one for one in self._owed if one.topic_filter != topic_filter]

    def pending(self) -> list[RetainedScan]:
        """Return scans that the client has not got yet."""
        return self._scans + self._owed

    def close_questions(self) -> None:
        """Forget questions to others: the client has gone, or wants no answers."""
        questions, self._questions = self._questions, []
        self._asking = None
        self._next = 0
        for question in questions:
            self._sources.questions.close(question)

    def go_on(self) -> None:
        """Send more in a later turn of the loop."""
        if self._scans and not self._is_due:
            self._is_due = True
            self._sources.loop.call_soon(self._step)

    def _step(self) -> None:
        self._is_due = False
        if not self._scans:
            return
        if not self._sources.lease.may_deliver():  # the session may be another gateway's by now
            self._look_later()
            return
        if wait := self._charge(0):
            self._look_later(min(wait, MOST_WAIT_SECONDS))
            return
        scan = self._scans[0]
        if is_system(scan.topic_filter):
            is_due = self._send_system(scan)
        else:
            is_due = self._send_shards(scan)
        sent, self._sent = self._sent, 0
        self._charge(sent)
        if is_due:
            self.go_on()

    def _charge(self, sent: int) -> float:
        recipient = self._recipient
        return self._sources.charge(recipient.tenant, recipient.client_id, sent)

    def _look_later(self, seconds: float = SCAN_RETRY_SECONDS) -> None:
        self._is_due = True
        self._sources.loop.call_later(seconds, self._step)

    def _send(self, message: OutboundMessage, scan: RetainedScan) -> bool:
        """Send a message; return False when there is no room for it."""
        is_sent = self._recipient.send_retained(message, scan)
        self._sent += is_sent
        return is_sent

    def _send_stored(self, message: RetainedMessage, scan: RetainedScan) -> bool:
        """Send a message unless it comes live; return False when there is no room for it."""
        outbound = to_outbound(message, scan.shard, self._sources.own.shards)
        is_live = outbound.offset >= at(scan.limits, outbound.partition)
        return is_live or self._send(outbound, scan)

    def _send_system(self, scan: RetainedScan) -> bool:
        room = self._recipient.retained_room(scan.qos)
        if not room:
            return False  # goes on by `send_waiting`
        page = self._sources.system_topics.page(
            self._recipient.tenant, scan.topic_filter, scan.position, room
        )
        for message in page.messages:
            if not self._send(message, scan):
                return False
            scan.position = just_after(message.topic_name)
        scan.position = page.position
        if scan.position is None:
            self._end(scan)
        return True

    def _send_shards(self, scan: RetainedScan) -> bool:
        """Send as much as there is room for; return whether there is more to do at once."""
        shards = self._shards(scan)
        for _ in range(SHARDS_AT_ONCE):
            if scan.shard >= shards.stop:
                self._end(scan)
                return True
            if not self._recipient.retained_room(scan.qos):
                return False  # goes on by `send_waiting`
            if not self._sources.own.is_complete(scan.shard):
                return self._send_asked(scan, shards)
            self.close_questions()
            if not self._is_new_enough(scan):
                self._look_later()
                return False
            if not self._send_own(scan):
                break
        return True

    def _shards(self, scan: RetainedScan) -> range:
        """Return which shards a scan is about; one that is new begins with the first."""
        count = self._sources.own.shards
        if "+" in scan.topic_filter or "#" in scan.topic_filter:
            return range(count)
        shard = self._sources.shard_of(message_key(self._recipient.tenant, scan.topic_filter))
        if scan.shard < shard:
            scan.shard, scan.position = shard, None
        return range(shard, shard + 1)

    def _is_new_enough(self, scan: RetainedScan) -> bool:
        """Tell whether the copy here has all messages before the client's live ones.

        The session may have begun at another gateway, which was ahead of this one.
        """
        reached = self._sources.delivered.next_offsets()
        goals = latest(scan.limits, self._floor)
        partitions = partitions_of(scan.shard, self._sources.own.shards, len(goals))
        return all(at(reached, one) >= goals[one] for one in partitions)

    def _send_own(self, scan: RetainedScan) -> bool:
        """Send a page of this gateway's copy; return whether that was the rest of the shard."""
        shard = scan.shard
        page = self._sources.own.page(
            shard,
            self._recipient.tenant,
            scan.topic_filter,
            scan.position,
            self._recipient.retained_room(scan.qos),
            PAGE_BYTES,
        )
        for message in page.messages:
            if not self._send_stored(message, scan):
                return False
            scan.position = just_after(message.topic_name)
        self._advance(scan, page.position)
        return page.position is None

    def _advance(self, scan: RetainedScan, position: str | None) -> None:
        scan.position = position
        if position is None:
            scan.shard += 1

    def _send_asked(self, scan: RetainedScan, shards: range) -> bool:
        """Send of the page that another gateway has given, or ask for it."""
        questions = self._sources.questions
        if self._asking is not scan or (self._questions and questions.is_void(self._questions[0])):
            self.close_questions()
        self._ask_shards(scan, shards)
        question = self._questions[0]
        page = question.page
        if page is None:
            return False  # goes on when it is answered
        messages = page.messages
        while self._next < len(messages):
            message = messages[self._next]
            is_sent = questions.is_overtaken(question, message) or self._send_stored(message, scan)
            if not is_sent:
                return False  # goes on by `send_waiting`
            scan.position = just_after(message.topic_name)
            self._next += 1
        self._next = 0
        questions.close(self._questions.pop(0))
        self._advance(scan, page.position)
        if page.position is not None:
            self._ask(scan, scan.shard, scan.position, RETAINED_PAGE, PAGE_BYTES, first=True)
        return True

    def _ask(
        self,
        scan: RetainedScan,
        shard: int,
        position: str | None,
        max_messages: int,
        max_bytes: int,
        *,
        first: bool = False,
    ) -> None:
        question = self._sources.questions.ask(
            self._recipient.tenant,
            shard,
            scan.topic_filter,
            position,
            max_messages,
            max_bytes,
            self.go_on,
        )
        self._questions.insert(0 if first else len(self._questions), question)

    def _ask_shards(self, scan: RetainedScan, shards: range) -> None:
        """Ask about the shard that is next, and those after it up to one that is here."""
        self._asking = scan
        if not self._questions:
            self._ask(scan, scan.shard, scan.position, RETAINED_PAGE, PAGE_BYTES)
        following = range(
            scan.shard + len(self._questions), min(scan.shard + 1 + AHEAD, shards.stop)
        )
        for shard in following:
            if self._sources.own.is_complete(shard):
                break
            self._ask(scan, shard, None, AHEAD_PAGE, AHEAD_BYTES)

    def _end(self, scan: RetainedScan) -> None:
        self.close_questions()
        del self._scans[0]
        self._recipient.retained_sent()
