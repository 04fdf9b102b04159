"""Exchanges with aiomqtt."""

import asyncio

import aiomqtt
from paho.mqtt.packettypes import PacketTypes

from tests.integration.clients.exchange import ANSWER_SECONDS, Exchange, Message, Result, Server
from tests.integration.clients.with_paho import properties_of, to_message

VERSIONS = {"3.1.1": aiomqtt.ProtocolVersion.V311, "5.0": aiomqtt.ProtocolVersion.V5}


def exchange_with_aiomqtt(exchange: Exchange) -> Result:
    return asyncio.run(_exchange(exchange))


async def _exchange(exchange: Exchange) -> Result:
    async with asyncio.timeout(ANSWER_SECONDS):
        publisher = _client(exchange, exchange.publisher, exchange.will)
        await publisher.__aenter__()
        for message in exchange.kept:
            await _publish(publisher, exchange, message)
        async with _client(exchange, exchange.subscriber) as subscriber:
            await subscriber.subscribe(exchange.topic_filter, exchange.qos)
            for message in exchange.sent:
                await _publish(publisher, exchange, message)
            if exchange.will is None:
                await publisher.__aexit__(None, None, None)
            else:
                _vanish(publisher)
            received: list[Message] = []
            async for one in subscriber.messages:
                received.append(to_message(one.topic.value, bytes(one.payload), one))
                if len(received) >= exchange.expected:
                    break
    return Result(0, received)  # anything but 0 raises


def _client(exchange: Exchange, url: str, will: Message | None = None) -> aiomqtt.Client:
    server = Server.of(url)
    return aiomqtt.Client(
        server.host,
        server.port,
        protocol=VERSIONS[exchange.version],
        transport=server.transport,
        will=None
        if will is None
        else aiomqtt.Will(
            will.topic,
            will.payload,
            will.qos,
            will.retain,
            properties_of(will, PacketTypes.WILLMESSAGE, exchange.version),
        ),
    )


async def _publish(client: aiomqtt.Client, exchange: Exchange, message: Message) -> None:
    await client.publish(
        message.topic,
        message.payload,
        message.qos,
        message.retain,
        properties_of(message, PacketTypes.PUBLISH, exchange.version),
    )


def _vanish(client: aiomqtt.Client) -> None:
    """Cut the connection below the client, which has no such operation itself."""
    connection = client._client.socket()
    assert connection is not None
    connection.close()
