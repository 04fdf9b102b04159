"""Messages that a share group is giving to a member: it unsubscribes, or others have got them."""

import json
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ingest.protocol.packets import (
    Pingreq,
    Pingresp,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Unsuback,
    Unsubscribe,
)
from ingest.session.groups.share_acts import LOST
from ingest.session.groups.share_records import encode_membership
from mqlake.records.messages import SESSIONS
from mqlake.records.sessions import PROGRESS
from mqlake.records.shards import MEMBER, MEMBERSHIP
from tests.ingest.gateway.harness import Client, Harness, turns, until
from tests.ingest.gateway.test_share_groups import (
    SHARED,
    member,
    publish,
    take,
    take_all,
    two_gateways,
    two_gateways_in_time,
)
from tests.ingest.gateway.test_survival import die_out

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.anyio, pytest.mark.promise]

KINDS = [MEMBER, MEMBERSHIP, PROGRESS]
"""Records of a QoS 2 message that a stored session is given, in the order in which they follow."""


class Gate:
    """Keeps records of one kind that a gateway writes from the log, until it is opened."""

    def __init__(self, harness: Harness, kind: str, patch: pytest.MonkeyPatch) -> None:
        self._kind = f"{kind}/".encode()
        self._append = harness.writer.append
        self._held: list[Callable[[], None]] = []
        self.is_open = False
        patch.setattr(harness.writer, "append", self.append)

    def append(self, log_topic: str, key: bytes, *record: Any, **options: Any) -> None:
        write = partial(self._append, log_topic, key, *record, **options)
        if self.is_open or log_topic != SESSIONS or not key.startswith(self._kind):
            write()
        else:
            self._held.append(write)

    @property
    def is_reached(self) -> bool:
        return bool(self._held)

    def open(self) -> None:
        self.is_open = True
        for write in self._held:
            write()


async def unsubscribe(client: Client, harness: Harness) -> None:
    """Send UNSUBSCRIBE; the gateway has taken it when this is over."""
    taken = harness.counters.packets_received
    client.send(Unsubscribe(client.next_packet_id(), [SHARED]))
    await until(lambda: harness.counters.packets_received > taken)


async def take_rest(sent: list[bytes], found: list[bytes], *clients: Client) -> None:
    """Take messages until all have come, and whatever comes besides."""
    await take_all(sent, found, *clients)
    await turns(20)
    found += [one.payload for client in clients for one in await take(client)]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_being_given_is_not_lost_with_the_gateway(
    kind: str, qos: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies when the log has all records but those of one kind; QoS 2 comes once."""
    async with two_gateways_in_time() as (first, second, clock):
        victim, survivor = await member(first, "a", qos, kept=True), await member(second, "b", qos)
        await first.saved()
        gate = Gate(first, kind, monkeypatch)
        sent = await publish(second, 20, qos)
        await until(lambda: gate.is_reached)
        await first.delivered()
        await unsubscribe(victim, first)
        first.gateway.share_groups.save_all()
        await turns(50)
        await first.kill()
        await die_out(clock, second)
        back = await member(second, "a", qos, kept=True)
        found: list[bytes] = []
        await take_rest(sent, found, survivor, back)
        assert set(found) == set(sent)
        if qos == 2:
            assert Counter(found) == Counter(sent)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_qos_2_that_is_being_given_comes_to_the_client_once(
    kind: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """UNSUBACK comes, and nobody else gets what the client has been sent."""
    async with two_gateways() as (first, second):
        client, other = await member(first, "a", 2, kept=kept), await member(second, "b", 2)
        await first.saved()
        gate = Gate(first, kind, monkeypatch)
        sent = await publish(second, 20, 2)
        await first.delivered()
        if kept:  # else there is nothing to reach for two of them
            await until(lambda: gate.is_reached)
        await unsubscribe(client, first)
        await turns(50)
        gate.open()
        found: list[bytes] = []
        has_left = False
        while not has_left or len(found) < 20:
            found += [one.payload for one in await take(other)]
            for packet in await packets(client):
                has_left = has_left or isinstance(packet, Unsuback)
                if isinstance(packet, Publish):
                    found.append(packet.payload)
        await turns(20)
        found += [one.payload for one in await take(other)]
        assert Counter(found) == Counter(sent)
        more = await publish(second, 5, 2, first=20)
        found.clear()
        await take_all(more, found, other)
        assert await packets(client) == []


async def packets(client: Client) -> list[Publish | Unsuback]:
    """Take what has come, and go on with each exchange of QoS 2."""
    found: list[Publish | Unsuback] = []
    client.send(Pingreq())
    while not isinstance(packet := await client.receive(), Pingresp):
        if isinstance(packet, Pubrel):
            client.send(Pubcomp(packet.packet_id))
            continue
        assert isinstance(packet, Publish | Unsuback), packet
        found.append(packet)
        if isinstance(packet, Publish):
            client.send(Pubrec(packet.packet_id))
    return found


@pytest.mark.parametrize("has_pubrec", [False, True])
async def test_an_exchange_is_finished_elsewhere_though_the_client_has_unsubscribed(
    has_pubrec: bool,
) -> None:
    """Between PUBLISH and PUBREC, or PUBREC and PUBCOMP, its gateway dies."""
    async with two_gateways_in_time() as (first, second, clock):
        victim, survivor = await member(first, "a", 2, kept=True), await member(second, "b", 2)
        sent = await publish(second, 20, 2)
        await first.delivered()
        found = [one.payload for one in await take(survivor)]
        received = [await victim.expect(Publish) for _ in range(20 - len(found))]
        found += [one.payload for one in received]
        if has_pubrec:
            for one in received:
                victim.send(Pubrec(one.packet_id))
            assert {(await victim.expect(Pubrel)).packet_id for _ in received}
        await victim.unsubscribe(SHARED)
        await first.kill()
        await die_out(clock, second)
        back = await member(second, "a", 2, kept=True)
        for one in received:
            again = back.expect(Pubrel) if has_pubrec else back.expect(Publish)
            assert (await again).packet_id == one.packet_id
        await turns(20)
        found += [one.payload for one in await take(survivor)]
        assert Counter(found) == Counter(sent)


async def test_what_others_have_got_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway was taken for dead before the log had the member's record."""
    async with two_gateways() as (first, second):
        client, _ = await member(first, "a", 2, kept=True), await member(second, "b", 2)
        await first.saved()
        gate = Gate(first, MEMBER, monkeypatch)
        await publish(second, 20, 2)
        await until(lambda: gate.is_reached)
        await first.delivered()
        groups = first.gateway.share_groups
        (membership,) = groups.memberships.values()
        left = membership.snapshot()
        assert left.open
        answer = {
            "do": LOST,
            "tenant": left.group.tenant,
            "filter": left.group.topic_filter,
            "part": left.membership_id,
            "incarnation": left.incarnation,
            "record": json.loads(encode_membership(left)),
        }
        groups.told(answer)
        session = first.gateway.sessions.get("default", "a")
        assert not session.sender.outbox.giving
        gate.open()
        await turns(50)
        await client.expect_nothing()
        assert session.snapshot().outgoing == []
