import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ingest.session.client.incoming import Arrival, IncomingMessages

PACKET_IDS = st.integers(1, 3)


@pytest.mark.parametrize("ends", ["stored", "refused"])
def test_messages_that_are_looked_for_are_not_behind_where_they_were_appended(ends: str) -> None:
    incoming = IncomingMessages()
    for packet_id in (1, 2, 3):
        incoming.receive_publish(packet_id)
    assert incoming.storing_from([5, 5]) == [5, 5]
    incoming.look_for(1, [2, 6])
    incoming.look_for(2, [4, 3])
    assert incoming.storing_from([7, 7]) == [2, 3]
    getattr(incoming, ends)(2)
    assert incoming.storing_from([7, 7]) == [2, 6]
    getattr(incoming, ends)(1)
    assert incoming.storing_from([7, 7]) == [7, 7]
    incoming.stored(3)
    assert incoming.storing_from([7, 7]) == []


class IncomingMachine(RuleBasedStateMachine):
    """Every state x every input, beside the diagram of the module written as a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.incoming = IncomingMessages()
        self.model: dict[int, str] = {}

    @rule(packet_id=PACKET_IDS)
    def receive_publish(self, packet_id: int) -> None:
        expected = {
            None: Arrival.NEW,
            "storing": Arrival.BEING_STORED,
            "stored": Arrival.STORED,
        }[self.model.get(packet_id)]
        assert self.incoming.receive_publish(packet_id) is expected
        self.model.setdefault(packet_id, "storing")

    @rule(packet_id=PACKET_IDS)
    def stored(self, packet_id: int) -> None:
        if self.model.get(packet_id) == "storing":  # the log reports once for each message
            self.incoming.stored(packet_id)
            self.model[packet_id] = "stored"

    @rule(packet_id=PACKET_IDS)
    def refused(self, packet_id: int) -> None:
        if self.model.get(packet_id) == "storing":
            self.incoming.refused(packet_id)
            del self.model[packet_id]

    @rule(packet_id=PACKET_IDS)
    def receive_pubrel(self, packet_id: int) -> None:
        is_stored = self.model.get(packet_id) == "stored"
        assert self.incoming.receive_pubrel(packet_id) is is_stored
        if is_stored:
            del self.model[packet_id]

    @invariant()
    def holds_what_is_under_way(self) -> None:
        assert len(self.incoming) == len(self.model)


TestIncomingMachine = IncomingMachine.TestCase


@given(st.integers(2, 5))
def test_a_message_is_new_once_however_often_it_is_repeated(times: int) -> None:
    incoming = IncomingMessages()
    arrivals = [incoming.receive_publish(7) for _ in range(times)]
    assert arrivals == [Arrival.NEW] + [Arrival.BEING_STORED] * (times - 1)


def test_a_pubrel_before_pubrec_does_not_end_the_exchange() -> None:
    incoming = IncomingMessages()
    incoming.receive_publish(7)
    assert not incoming.receive_pubrel(7)
    incoming.stored(7)
    assert incoming.receive_pubrel(7)
    assert incoming.receive_publish(7) is Arrival.NEW


def test_an_identifier_is_free_again_after_pubrel() -> None:
    incoming = IncomingMessages()
    incoming.receive_publish(7)
    incoming.stored(7)
    assert incoming.receive_publish(7) is Arrival.STORED
    assert incoming.receive_pubrel(7)
    assert not incoming.receive_pubrel(7)
    assert incoming.receive_publish(7) is Arrival.NEW


@pytest.mark.clause("MQTT5-4.3.3-9")
def test_a_refused_message_leaves_its_identifier_free() -> None:
    incoming = IncomingMessages()
    incoming.receive_publish(1)
    incoming.refused(1)
    assert incoming.receive_publish(1) is Arrival.NEW
