"""A wildcard subscription gets all of many retained messages while some of them change.

They are in the log before the gateway starts, which reads them from there. One subscriber speaks
5.0 and takes few at a time, the other 3.1.1; each message that either gets is looked at.
"""

import asyncio
import random
from collections.abc import Callable
from typing import cast

import pytest

from ingest.protocol.decoder import NEED_DATA, Decoder
from ingest.protocol.encoder import encode, encode_puback
from ingest.protocol.fixed_header import Role
from ingest.protocol.packets import (
    Connack,
    Connect,
    Packet,
    Publish,
    Suback,
    Subscribe,
    Subscription,
)
from ingest.protocol.reason_codes import SubackReasonCode
from mqlake.log.contract import ANY_PARTITION
from mqlake.records.messages import INBOUND, Message, message_headers, message_key
from tests.ingest.gateway.harness import Client, new_log, running_gateway
from tests.waiting import until

pytestmark = pytest.mark.anyio

FIRST = b"0"
REMOVED = b""
UPDATE_EVERY = 100
"""One topic changes after so many messages that a subscriber got."""

RECEIVE_MAXIMUM = 20


def topic_of(number: int) -> str:
    return f"plant/{number % 100}/device/{number}"


class Subscriber(asyncio.Protocol):
    """Takes everything, acknowledges it, and knows of each topic what came last.

    Args:
        level: Protocol level.
        window: Most messages that may be unacknowledged.
        on_message: Called after each message.
    """

    def __init__(self, level: int, window: int, on_message: Callable[[], None]) -> None:
        self.last: dict[str, bytes] = {}
        self.wrong: list[tuple[bytes | None, Publish]] = []
        self.most_at_once = 0
        self.answers: list[Packet] = []
        self._level = level
        self.window = window
        self._on_message = on_message
        self._decoder = Decoder(level, role=Role.CLIENT)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        connect = Connect(f"subscriber-{self._level}", self._level)
        if self._level == 5:
            connect.properties = {"receive_maximum": self.window}
        self._transport.write(encode(connect, self._level))
        self._transport.write(encode(Subscribe(1, [Subscription("#", 1)]), self._level))

    def data_received(self, data: bytes) -> None:
        self._decoder.receive_data(data)
        pubacks = []
        while (packet := self._decoder.next_packet()) is not NEED_DATA:
            if isinstance(packet, Publish):
                self._take(packet)
                pubacks.append(encode_puback(packet.packet_id))
            else:
                self.answers.append(packet)
        self.most_at_once = max(self.most_at_once, len(pubacks))
        self._transport.write(b"".join(pubacks))

    def _take(self, message: Publish) -> None:
        topic_name, payload = message.topic_name, message.payload
        before = self.last.get(topic_name)
        # A removal is the last that happens to a topic.
        if before is not None and (
            before == REMOVED or (payload != REMOVED and int(payload) <= int(before))
        ):
            self.wrong.append((before, message))
        if message.qos != 1 or message.dup:
            self.wrong.append((None, message))
        self.last[topic_name] = payload
        self._on_message()


@pytest.mark.parametrize(
    "retained",
    [10_000, pytest.param(100_000, marks=pytest.mark.campaign("it is the same with a tenth"))],
)
async def test_everybody_gets_the_newest_of_each_topic_and_nothing_goes_back(retained: int) -> None:
    chance = random.Random(7)
    log = new_log()
    for number in range(retained):
        message = Message(
            "default", topic_of(number), FIRST, 1, True, bytes(16), "publisher", 1, "local/test"
        )
        key = message_key("default", message.topic_name)
        log.store(INBOUND, key, FIRST, message_headers(message), 1, ANY_PARTITION)
    newest = dict.fromkeys(map(topic_of, range(retained)), FIRST)
    async with running_gateway(log=log, max_inflight_messages=200) as harness:
        assert len(harness.gateway.retained) == retained
        publisher = await Client.connect(harness.port, "publisher")
        received = 0

        def update() -> None:
            nonlocal received
            received += 1
            if received % UPDATE_EVERY or received > 2 * retained:
                return
            topic_name = topic_of(chance.randrange(retained))
            if newest[topic_name] == REMOVED:
                return
            payload = REMOVED if chance.random() < 0.1 else b"%d" % (int(newest[topic_name]) + 1)
            newest[topic_name] = payload
            publisher.send(
                Publish(topic_name, payload, 1, retain=True, packet_id=publisher.next_packet_id())
            )

        loop = asyncio.get_running_loop()
        subscribers = [
            Subscriber(5, RECEIVE_MAXIMUM, update),
            Subscriber(4, harness.gateway.settings.max_inflight_messages, update),
        ]
        for subscriber in subscribers:
            await loop.create_connection(lambda one=subscriber: one, "127.0.0.1", harness.port)  # type: ignore[misc]
        # All topics are compared once all can be there, and then now and then.
        await until(
            lambda: (
                received >= 2 * retained
                and all(subscriber.last == newest for subscriber in subscribers)
            )
        )
        await publisher.expect_answered()
        for subscriber in subscribers:
            assert subscriber.last == newest
            assert not subscriber.wrong
            assert isinstance(subscriber.answers[0], Connack)
            assert subscriber.answers[1:] == [Suback(1, [SubackReasonCode.GRANTED_QOS_1])]
            assert subscriber.most_at_once <= subscriber.window
        changed = sum(payload != FIRST for payload in newest.values())
        assert changed > retained / UPDATE_EVERY
        assert REMOVED in newest.values()
