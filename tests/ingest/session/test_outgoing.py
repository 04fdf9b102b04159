from collections import deque
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ingest.session.client.outgoing import MAX_PACKET_ID, Offer, OutgoingMessages

QOS = st.sampled_from((1, 2))
PACKET_IDS = st.integers(1, 12)


class Shared:
    """What waits for this session and others, which may fill it."""

    def __init__(self) -> None:
        self.size = 0
        self.is_full = False

    def add(self, size: int) -> None:
        self.size += size


class OutgoingMachine(RuleBasedStateMachine):
    """Every state x every input, beside a model that knows no more than the module's diagram."""

    @initialize(window=st.integers(1, 4), max_queued=st.integers(0, 4), max_bytes=st.integers(0, 6))
    def start(self, window: int, max_queued: int, max_bytes: int) -> None:
        self.window = window
        self.max_queued = max_queued
        self.max_bytes = max_bytes
        self.shared = Shared()
        self.outgoing: OutgoingMessages[int] = OutgoingMessages(
            window=window, max_queued=max_queued, max_queued_bytes=max_bytes, shared=self.shared
        )
        self.sizes: dict[int, int] = {}
        self.numbers = count()
        self.inflight: dict[int, str] = {}  # packet identifier -> what it waits for
        self.queue: deque[tuple[int, int]] = deque()
        self.sent: list[int] = []

    def started(self, packet_id: int, message: int, qos: int) -> None:
        assert 1 <= packet_id <= MAX_PACKET_ID
        assert packet_id not in self.inflight
        self.inflight[packet_id] = "PUBACK" if qos == 1 else "PUBREC"
        self.sent.append(message)

    @property
    def queued_bytes(self) -> int:
        return sum(self.sizes[message] for message, _ in self.queue)

    @rule(is_full=st.booleans())
    def others_fill_what_is_shared(self, is_full: bool) -> None:
        self.shared.is_full = is_full

    @rule(qos=QOS, writable=st.booleans(), size=st.integers(0, 4))
    def offer(self, qos: int, writable: bool, size: int) -> None:
        message = next(self.numbers)
        self.sizes[message] = size
        is_within = not self.max_bytes or self.queued_bytes < self.max_bytes
        is_within = is_within and not self.shared.is_full
        result = self.outgoing.offer(message, qos, writable=writable, size=size)
        if writable and not self.queue and len(self.inflight) < self.window:
            assert isinstance(result, int)
            self.started(result, message, qos)
        elif len(self.queue) < self.max_queued and is_within:
            assert result is Offer.QUEUED
            self.queue.append((message, qos))
        else:
            assert result is Offer.DROPPED

    @rule()
    def drop_oldest(self) -> None:
        oldest = self.queue.popleft()[0] if self.queue else None
        assert self.outgoing.drop_oldest() == oldest

    @rule(odd=st.booleans())
    def take_waiting(self, odd: bool) -> None:
        taken = [message for message, _ in self.queue if message % 2 == odd]
        self.queue = deque(one for one in self.queue if one[0] not in taken)
        assert self.outgoing.take_waiting(lambda message: message % 2 == odd) == taken

    @rule()
    def take_ready(self) -> None:
        ready = self.outgoing.take_ready()
        if self.queue and len(self.inflight) < self.window:
            message, qos = self.queue.popleft()
            assert ready is not None
            assert ready[1] == message
            self.started(ready[0], message, qos)
        else:
            assert ready is None

    @rule(packet_id=PACKET_IDS)
    def receive_puback(self, packet_id: int) -> None:
        waited = self.inflight.get(packet_id) == "PUBACK"
        assert self.outgoing.receive_puback(packet_id) is waited
        if waited:
            del self.inflight[packet_id]

    @rule(packet_id=PACKET_IDS, refused=st.booleans())
    def receive_pubrec(self, packet_id: int, refused: bool) -> None:
        known = self.inflight.get(packet_id) in {"PUBREC", "PUBCOMP"}
        assert self.outgoing.receive_pubrec(packet_id, refused=refused) is known
        if known and refused:
            del self.inflight[packet_id]
        elif known:
            self.inflight[packet_id] = "PUBCOMP"

    @rule(packet_id=PACKET_IDS)
    def receive_pubcomp(self, packet_id: int) -> None:
        waited = self.inflight.get(packet_id) == "PUBCOMP"
        assert self.outgoing.receive_pubcomp(packet_id) is waited
        if waited:
            del self.inflight[packet_id]

    @precondition(lambda self: self.inflight)
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        packet_id = data.draw(st.sampled_from(sorted(self.inflight)))
        self.outgoing.abandon(packet_id)
        del self.inflight[packet_id]

    @precondition(lambda self: self.inflight)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        packet_id = data.draw(st.sampled_from(sorted(self.inflight)))
        is_qos_2 = self.inflight[packet_id] != "PUBACK"
        assert self.outgoing.withdraw(packet_id) is is_qos_2
        if is_qos_2:
            self.inflight[packet_id] = "PUBCOMP"
        else:
            del self.inflight[packet_id]

    @invariant()
    def bounds_hold(self) -> None:
        assert self.outgoing.inflight_count == len(self.inflight) <= self.window
        assert self.outgoing.queued_count == len(self.queue) <= self.max_queued
        assert self.outgoing.queued_bytes == self.shared.size == self.queued_bytes

    @invariant()
    def order_is_kept(self) -> None:
        assert self.sent == sorted(self.sent)


TestOutgoingMachine = OutgoingMachine.TestCase


@pytest.mark.clause("MQTT5-2.2.1-4")
def test_packet_identifiers_wrap_after_65535_and_pass_over_those_in_use() -> None:
    outgoing: OutgoingMessages[str] = OutgoingMessages(window=2, max_queued=0)
    assert outgoing.offer("kept in flight", 1, writable=True) == 1
    seen = []
    for _ in range(MAX_PACKET_ID + 1):
        packet_id = outgoing.offer("passing", 1, writable=True)
        assert isinstance(packet_id, int)
        assert outgoing.receive_puback(packet_id)
        seen.append(packet_id)
    assert seen == [*range(2, MAX_PACKET_ID + 1), 2, 3]


def test_all_identifiers_can_be_in_use_at_once() -> None:
    outgoing: OutgoingMessages[int] = OutgoingMessages(window=MAX_PACKET_ID, max_queued=1)
    ids = {outgoing.offer(number, 2, writable=True) for number in range(MAX_PACKET_ID)}
    assert ids == set(range(1, MAX_PACKET_ID + 1))
    assert outgoing.offer(0, 2, writable=True) is Offer.QUEUED
    assert outgoing.take_ready() is None


def test_a_message_waits_behind_others_even_when_the_window_has_room() -> None:
    outgoing: OutgoingMessages[str] = OutgoingMessages(window=2, max_queued=2)
    assert outgoing.offer("first", 1, writable=False) is Offer.QUEUED
    assert outgoing.offer("second", 1, writable=True) is Offer.QUEUED
    assert outgoing.take_ready() == (1, "first", False)
    assert outgoing.take_ready() == (2, "second", False)


def test_a_session_that_is_over_counts_for_others_no_more() -> None:
    shared = Shared()
    outgoing: OutgoingMessages[str] = OutgoingMessages(window=1, max_queued=3, shared=shared)
    for message in "abc":
        outgoing.offer(message, 1, writable=False, size=5)
    assert shared.size == 15
    outgoing.leave()
    assert shared.size == 0
    assert outgoing.take_waiting(lambda _: True) == ["a", "b", "c"]
    assert shared.size == 0, "given back once"


@pytest.mark.clause("MQTT5-4.9.0-1")
@given(st.integers(1, 5), st.integers(0, 20))
def test_a_qos_2_message_holds_its_place_until_pubcomp(window: int, messages: int) -> None:
    outgoing: OutgoingMessages[int] = OutgoingMessages(window=window, max_queued=messages)
    for number in range(messages):
        outgoing.offer(number, 2, writable=True)
    started = min(window, messages)
    for packet_id in range(1, started + 1):
        assert outgoing.receive_pubrec(packet_id, refused=False)
        assert outgoing.inflight_count == started
    for packet_id in range(1, started + 1):
        assert outgoing.receive_pubcomp(packet_id)
    assert outgoing.inflight_count == 0
