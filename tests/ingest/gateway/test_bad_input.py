"""Every malformed row of `tests/wire/` is sent to a gateway that runs.

5.0 gets the row's reason code, in CONNACK or DISCONNECT; 3.x is closed, with CONNACK 1 where that
is the answer; a first packet that is not enough of a CONNECT to tell its version is not answered.
The log names the row's clause at DEBUG. A bystander notices nothing.
"""

import logging
from typing import Any

import pytest

from ingest.protocol.errors import RemoteProtocolError, UnsupportedProtocol
from ingest.protocol.fixed_header import Role
from ingest.protocol.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Publish,
    Pubrec,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from ingest.protocol.properties import Properties
from ingest.protocol.reason_codes import RETURN_CODE_OF_REASON, AuthReasonCode, ConnackReasonCode
from tests.ingest.gateway.harness import Client, Harness, running_gateway
from tests.ingest.wire import WireRow, read_rows

pytestmark = pytest.mark.anyio

MALFORMED = [row for row in read_rows() if row.clause and row.role is Role.SERVER]


class Violations(logging.Handler):
    """Collects the clauses that the gateway logs at DEBUG, and whatever is worse than INFO."""

    def __init__(self) -> None:
        super().__init__()
        self.clauses: list[str] = []
        self.worse: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == "protocol violation":
            assert record.levelno == logging.DEBUG
            fields: dict[str, Any] = record.__dict__["fields"]
            assert fields["clause"] in fields["reason"]
            self.clauses.append(fields["clause"])
        elif record.levelno > logging.INFO:
            self.worse.append(record.getMessage())


@pytest.fixture
def violations() -> Any:
    handler = Violations()
    gateway_logger = logging.getLogger("ingest.gateway")
    level = gateway_logger.level
    gateway_logger.addHandler(handler)
    gateway_logger.setLevel(logging.DEBUG)
    yield handler
    gateway_logger.removeHandler(handler)
    gateway_logger.setLevel(level)


async def send(harness: Harness, row: WireRow) -> None:
    """Send a row where it belongs and check the answer."""
    level = row.protocol_level
    if not row.file.startswith("connect-"):
        client = await Client.connect(harness.port, "bad", level=level)
        client.send_bytes(row.data)
        if level == 5:
            assert (await client.expect(Disconnect)).reason_code == row.reason_code
        assert await client.is_closed()
        return
    level = answer_level(row)
    client = await Client.open(harness.port, level or 5)
    client.send_bytes(row.data)
    answer = await client.receive()
    reason_code = ConnackReasonCode(row.reason_code)
    if level == 5 or (level and RETURN_CODE_OF_REASON[reason_code] is not None):
        assert isinstance(answer, Connack)
        assert answer.reason_code is reason_code
    else:
        assert answer is None
    assert await client.is_closed()


def answer_level(row: WireRow) -> int:
    """Return in whose words a first packet is refused: its own, 0 when it does not say."""
    decoder = row.decoder()
    decoder.receive_data(row.data)
    try:
        decoder.next_packet()
    except UnsupportedProtocol as error:
        return 5 if error.protocol_level >= 5 else 4
    except RemoteProtocolError:
        pass
    return decoder.protocol_level or 0


@pytest.mark.parametrize("level", [3, 4, 5], ids=["3.1", "3.1.1", "5.0"])
async def test_each_malformed_row_gets_its_answer_and_its_clause_in_the_log(
    violations: Violations, level: int
) -> None:
    async with running_gateway() as harness:
        bystander = await Client.connect(harness.port, "bystander")
        await bystander.subscribe("a", 1)
        rows = [row for row in MALFORMED if row.protocol_level == level]
        assert len(rows) > 50
        wrong = []
        for row in rows:
            violations.clauses.clear()
            try:
                await send(harness, row)
                assert violations.clauses == [row.clause]
            except AssertionError as error:
                wrong.append((row.file, row.name, str(error)))
        assert wrong == []
        await bystander.publish("a", b"unharmed")
        assert await bystander.payloads(1) == [b"unharmed"]
        assert harness.gateway.status.bug == ""
        assert violations.worse == []


EXPIRY: Properties = {"session_expiry_interval": 5}
ALIAS: Properties = {"topic_alias": 2}
METHOD: Properties = {"authentication_method": "X"}
TEXT: Properties = {"payload_format_indicator": 1}


@pytest.mark.parametrize(
    ("level", "packets", "reason_code", "clause"),
    [
        (5, [Subscribe(1, [Subscription("a#")])], 0x8F, "MQTT5-4.7.1-1"),
        (4, [Subscribe(1, [Subscription("a#")])], 0, "MQTT311-4.7.1-2"),
        (3, [Subscribe(1, [Subscription("a#")])], 0, "MQTT31-A"),
        (5, [Unsubscribe(1, ["a+"])], 0x8F, "MQTT5-4.7.1-2"),
        (4, [Unsubscribe(1, ["a+"])], 0, "MQTT311-4.7.1-3"),
        (4, [Unsubscribe(1, [""])], 0, "MQTT311-4.7.3-1"),
        (4, [Subscribe(1, [Subscription("$share//a")])], 0, "MQTT5-4.8.2-1"),
        (5, [Connect("again", 5)], 0x82, "MQTT5-3.1.0-2"),
        (
            5,
            [Auth(AuthReasonCode.RE_AUTHENTICATE, METHOD)],
            0x82,
            "MQTT5-4.12.0-7",
        ),
        (5, [Disconnect(properties=EXPIRY)], 0x82, "MQTT5-3.14.2.2.2"),
        (5, [Publish("a", b"", properties={"topic_alias": 65})], 0x94, "MQTT5-3.3.2-9"),
        (5, [Publish("", b"", properties=ALIAS)], 0x82, "MQTT5-3.3.2.3.4"),
        (5, [Publish("a", bytes(2000))], 0x95, "MQTT5-3.2.2-15"),
        (4, [Publish("a", bytes(2000))], 0, "MQTT311-2.2.3"),
        (5, [Publish("a", b"", 2, packet_id=one) for one in (1, 2, 3)], 0x93, "MQTT5-3.3.4-7"),
        (
            5,
            [Publish("a", b"\xff", properties={"payload_format_indicator": 1})],
            0x99,
            "MQTT5-3.3.2.3.2",
        ),
    ],
)
async def test_what_only_a_connection_can_tell_has_a_clause_too(
    violations: Violations, level: int, packets: list[Packet], reason_code: int, clause: str
) -> None:
    async with running_gateway(max_packet_bytes=1024, receive_maximum=2) as harness:
        client = await Client.connect(harness.port, "bad", level=level)
        client.send(*packets)
        if level == 5:
            disconnect = await client.receive()
            while isinstance(disconnect, Pubrec):
                disconnect = await client.receive()
            assert isinstance(disconnect, Disconnect)
            assert disconnect.reason_code == reason_code
        assert await client.is_closed()
        assert violations.clauses == [clause]
        assert violations.worse == []


@pytest.mark.parametrize(
    ("connect", "reason_code", "clause"),
    [
        (Connect("", 3), 0x85, "MQTT31-3.1"),
        (Connect("", 4, clean_start=False), 0x85, "MQTT311-3.1.3-8"),
        (
            Connect("a", 5, will=Will("w", b"\xff", properties=TEXT)),
            0x99,
            "MQTT5-3.1.3.2.3",
        ),
    ],
)
async def test_a_connect_that_is_refused_has_a_clause_too(
    violations: Violations, connect: Connect, reason_code: int, clause: str
) -> None:
    async with running_gateway() as harness:
        client = await Client.open(harness.port, connect.protocol_level)
        client.send(connect)
        assert (await client.expect(Connack)).reason_code == reason_code
        assert await client.is_closed()
        assert violations.clauses == [clause]
        assert violations.worse == []
