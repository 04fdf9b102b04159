"""The clients of the proof, against a gateway in memory that is killed and comes back."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from mqlake.errors import OperationalError
from mqlake.log.memory import MemoryLog
from mqlake.records import BARRIER_KEY_PREFIX, INBOUND
from mqlake.survival.clients import Attendant, Caller, ProvingClient
from mqlake.survival.flows import Flow, MessageFlow, RetainedFlow, ShareFlow
from mqlake.survival.ledger import RetainedVerdict, Sent, Verdict
from mqlake.survival.roles import Publisher
from tests.ingest.gateway.harness import Harness, free_port, running_gateway, until
from tests.ingest.gateway.test_survival import site

MESSAGE = Sent("a", 1)
NOT_FOUND = ReasonCode(PacketTypes.PUBCOMP, identifier=0x92)


@pytest.fixture
def publisher() -> Publisher:
    """Return one with a message on its way under packet identifier 1."""
    caller = Caller("p", 5, [1], home=0, moves=False)
    publisher = Publisher(caller, topics=[], count=0, per_second=1, seed=1, qos=2)
    publisher._under_way[1] = MESSAGE
    return publisher


def test_an_exchange_that_is_not_found_was_finished_when_its_pubrel_had_left_before(
    publisher: Publisher,
) -> None:
    for _ in range(2):
        publisher._paho._send_pubrel(1)
    publisher._answered(publisher._paho, None, 1, NOT_FOUND, None)
    assert list(publisher.acknowledged) == [MESSAGE]
    assert publisher.is_done


def test_an_exchange_that_is_not_found_at_its_first_pubrel_is_refused(publisher: Publisher) -> None:
    publisher._paho._send_pubrel(1)
    publisher._answered(publisher._paho, None, 1, NOT_FOUND, None)
    assert publisher.refused == {MESSAGE: "Pubcomp: Packet identifier not found"}
    assert not publisher.acknowledged


def test_how_often_a_pubrel_was_sent_does_not_count_for_the_next_message(
    publisher: Publisher,
) -> None:
    for _ in range(2):
        publisher._paho._send_pubrel(1)
    publisher._answered(publisher._paho, None, 1, NOT_FOUND, None)
    publisher._under_way[1] = Sent("a", 2)
    publisher._paho._send_pubrel(1)
    publisher._answered(publisher._paho, None, 1, NOT_FOUND, None)
    assert list(publisher.refused) == [Sent("a", 2)]


@pytest.mark.anyio
@pytest.mark.parametrize("level", [4, 5])
async def test_a_message_that_is_refused_is_noted(level: int) -> None:
    async with running_gateway() as harness:
        harness.gateway.publisher.is_refusing = "the disk is full"
        publisher = Publisher(
            Caller("p", level, [harness.port], home=0, moves=False),
            topics=["a"],
            count=1,
            per_second=100,
            seed=1,
            qos=2,
        )
        publisher.come()
        with attended([publisher]):
            if level == 5:
                await until(lambda: publisher.refused)
                assert publisher.refused == {Sent("a", 0): "Pubrec: Quota exceeded"}
            else:  # is disconnected, and tries again until it is taken
                await until(lambda: publisher.connections > 1)
                harness.gateway.publisher.is_refusing = ""
                await until(lambda: publisher.acknowledged)
        assert publisher.is_done


@pytest.mark.anyio
@pytest.mark.parametrize("qos", [1, 2])
async def test_a_gateway_is_killed_in_the_middle(qos: int) -> None:
    port = free_port()
    flow = Flow("t", [port], qos, 1, messages=400, per_second=1_000, moves=False)
    async with site() as (log, router):

        def gateway() -> AbstractAsyncContextManager[Harness]:
            return running_gateway(log=log, router=router, port=port, max_repeated_messages=1)

        with attended(flow.clients, flow):
            async with gateway() as harness:
                for one in flow.subscribers:
                    one.come()
                await until(lambda: all(one.is_subscribed for one in flow.subscribers))
                flow.start()
                await until(lambda: flow.sent_count >= flow.total / 4)
                await harness.kill()
            async with gateway():
                await until(lambda: flow.is_acknowledged and flow.has_arrived)
    verdict, notes = flow.judge(stored(log))
    # Few messages: what is left of the publishers' is more than one in a thousand.
    assert [one for one in verdict.problems if "duplicates, at most" not in one] == []
    assert notes == ()
    assert isinstance(verdict, Verdict)
    assert verdict.sent == verdict.acknowledged == flow.total


async def _kill_in_the_middle(flow: MessageFlow, ports: Sequence[int]) -> Counter[Sent]:
    """Run a flow over two gateways, one of which is killed and comes back."""
    async with site() as (log, router):

        def gateway(number: int) -> AbstractAsyncContextManager[Harness]:
            name = f"gateway-{number + 1}"
            return running_gateway(log=log, router=router, port=ports[number], name=name)

        async with gateway(1):
            with attended(flow.clients, flow):
                async with gateway(0) as harness:
                    for one in flow.subscribers:
                        one.come()
                    await until(lambda: all(one.is_subscribed for one in flow.subscribers))
                    flow.start()
                    await until(lambda: flow.sent_count >= flow.total / 4)
                    await harness.kill()
                async with gateway(0):
                    await until(lambda: flow.is_acknowledged and flow.has_arrived)
    return stored(log)


@pytest.mark.anyio
async def test_a_share_group_misses_nothing_when_a_gateway_is_killed() -> None:
    ports = [free_port(), free_port()]
    flow = ShareFlow("t", ports, 1, seconds=2, moves=False)
    verdict, notes = flow.judge(await _kill_in_the_middle(flow, ports))
    assert notes == verdict.problems == ()
    assert isinstance(verdict, Verdict)
    assert verdict.received == verdict.acknowledged == flow.total


@pytest.mark.anyio
async def test_retained_messages_do_not_go_back_when_a_gateway_is_killed() -> None:
    ports = [free_port(), free_port()]
    flow = RetainedFlow("t", ports, 1, seconds=3, moves=False)
    verdict, notes = flow.judge(await _kill_in_the_middle(flow, ports))
    assert notes == verdict.problems == ()
    assert isinstance(verdict, RetainedVerdict)
    assert verdict.sent == flow.total
    assert verdict.looks > verdict.last >= 1


def test_clients_that_break_are_heard_of() -> None:
    def step() -> None:
        raise ValueError("no")

    attendant = Attendant([], [step])
    attendant.start()
    with pytest.raises(OperationalError, match="the clients broke: ValueError"):
        attendant.holds(lambda: False, 5)


@contextmanager
def attended(clients: Sequence[ProvingClient], flow: MessageFlow | None = None) -> Iterator[None]:
    attendant = Attendant(clients, [] if flow is None else [flow.step])
    attendant.start()
    try:
        yield
    finally:
        attendant.stop()


def stored(log: MemoryLog) -> Counter[Sent]:
    found: Counter[Sent] = Counter()
    for record in log.records(INBOUND):
        key = record.key or b""
        if not key.startswith(BARRIER_KEY_PREFIX):
            number = int((record.value or b"").partition(b":")[0])
            found[Sent(key.decode().partition("/")[2], number)] += 1
    return found
