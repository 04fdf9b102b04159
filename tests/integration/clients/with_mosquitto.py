"""Exchanges with mosquitto_pub and mosquitto_sub."""

import json
import re
import shutil
import subprocess
from typing import IO, Any

import pytest

from tests.integration.clients.exchange import ANSWER_SECONDS, Exchange, Message, Result, Server

VERSIONS = {"3.1.1": "mqttv311", "5.0": "mqttv5"}


def exchange_with_mosquitto(exchange: Exchange) -> Result:
    if shutil.which("mosquitto_pub") is None or shutil.which("mosquitto_sub") is None:
        pytest.fail("mosquitto_pub is missing: apt install mosquitto-clients", pytrace=False)
    for message in exchange.kept:
        _publish(exchange, message)
    with subprocess.Popen(
        [
            "stdbuf",
            "-oL",
            "mosquitto_sub",
            "-d",
            "-F",
            "%j",
            "-W",
            f"{ANSWER_SECONDS:.0f}",
            *_server(exchange, exchange.subscriber),
            "-t",
            exchange.topic_filter,
            "-q",
            str(exchange.qos),
            "-C",
            str(exchange.expected),
        ],
        stdout=subprocess.PIPE,
        text=True,
    ) as subscriber:
        output = subscriber.stdout
        assert output is not None
        connack = int(_await_line(output, r"received CONNACK \((\d+)\)"))
        _await_line(output, r"received (SUBACK)")
        for message in exchange.sent:
            _publish(exchange, message)
        if exchange.will is not None:
            _vanish(exchange, exchange.will)
        received = [_to_message(line) for line in output if line.startswith("{")]
        assert subscriber.wait(ANSWER_SECONDS) == 0, received
    return Result(connack, received)


def _server(exchange: Exchange, url: str) -> tuple[str, ...]:
    server = Server.of(url)
    return "-h", server.host, "-p", str(server.port), "-V", VERSIONS[exchange.version]


def _publish(exchange: Exchange, message: Message) -> None:
    command = ["mosquitto_pub", *_server(exchange, exchange.publisher), "-t", message.topic]
    command += ["-m", message.payload, "-q", str(message.qos), *["-r"] * message.retain]
    for name, value in message.user_properties:
        command += ["-D", "publish", "user-property", name, value]
    subprocess.run(command, check=True, timeout=ANSWER_SECONDS)


def _vanish(exchange: Exchange, will: Message) -> None:
    """Connect a client that has a will, and kill it."""
    with subprocess.Popen(
        [
            "stdbuf",
            "-oL",
            "mosquitto_sub",
            "-d",
            *_server(exchange, exchange.publisher),
            "-t",
            f"{will.topic}/none",
            "--will-topic",
            will.topic,
            "--will-payload",
            will.payload,
            "--will-qos",
            str(will.qos),
            *["--will-retain"] * will.retain,
        ],
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdout is not None
        _await_line(client.stdout, r"received (SUBACK)")
        client.kill()


def _await_line(output: IO[str], pattern: str) -> str:
    for line in output:
        found = re.search(pattern, line)
        if found:
            return found[1]
    raise AssertionError(f"mosquitto_sub ended before {pattern}")


def _to_message(line: str) -> Message:
    # User properties are an object in which a name may come several times.
    fields = dict(json.loads(line, object_pairs_hook=list))
    properties: dict[str, Any] = dict(fields.get("properties", []))
    return Message(
        fields["topic"],
        fields.get("payload", ""),
        fields["qos"],
        bool(fields["retain"]),
        tuple((name, value) for name, value in properties.get("user-properties", [])),
    )
