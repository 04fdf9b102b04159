"""`ServerConnection`: the handshake and what belongs to a connection, not to one packet."""

from typing import TYPE_CHECKING

import pytest

from ingest.protocol.connection import (
    MAX_PACKET_BYTES_BEFORE_LOGIN,
    MAX_RECEIVE_MAXIMUM,
    ConnectionState,
    ServerConnection,
)
from ingest.protocol.decoder import NEED_DATA, Decoder
from ingest.protocol.encoder import encode
from ingest.protocol.errors import (
    MalformedPacket,
    PacketTooLarge,
    ProtocolViolation,
    RemoteProtocolError,
    UnsupportedProtocol,
)
from ingest.protocol.fixed_header import Role
from ingest.protocol.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Publish,
    Will,
)
from ingest.protocol.properties import MAX_USER_PROPERTIES, MAX_USER_PROPERTIES_BEFORE_LOGIN
from ingest.protocol.reason_codes import ConnackReasonCode, DisconnectReasonCode

if TYPE_CHECKING:
    from ingest.protocol.properties import Properties

LEVELS = (3, 4, 5)


def new_connection(*, receive_maximum: int = 10, topic_alias_maximum: int = 3) -> ServerConnection:
    return ServerConnection(
        max_packet_bytes=1000,
        receive_maximum=receive_maximum,
        topic_alias_maximum=topic_alias_maximum,
    )


def connected(level: int = 5, **limits: int) -> ServerConnection:
    connection = new_connection(**limits)
    connection.receive_data(encode(Connect("alice", level), level))
    connection.next_packet()
    connection.accept(session_present=False, properties={})
    return connection


def send(connection: ServerConnection, *packets: Packet) -> None:
    for packet in packets:
        connection.receive_data(encode(packet, connection.protocol_level))


def publish(topic_name: str = "a", qos: int = 0, packet_id: int = 0, alias: int = 0) -> Publish:
    properties: Properties = {"topic_alias": alias} if alias else {}
    return Publish(topic_name, b"x", qos, packet_id=packet_id, properties=properties)


def decoded(data: bytes, level: int) -> Packet:
    decoder = Decoder(level, role=Role.CLIENT)
    decoder.receive_data(data)
    packet = decoder.next_packet()
    assert packet is not NEED_DATA
    return packet


@pytest.mark.parametrize("level", LEVELS)
def test_a_handshake_ends_connected(level: int) -> None:
    connection = new_connection()
    assert connection.state is ConnectionState.AWAITING_CONNECT
    connection.receive_data(encode(Connect("alice", level), level))
    packet = connection.next_packet()
    assert isinstance(packet, Connect)
    assert connection.protocol_level == level
    assert not connection.is_connected
    answer = connection.accept(session_present=False, properties={"receive_maximum": 7})
    properties: Properties = {"receive_maximum": 7} if level == 5 else {}
    assert decoded(answer, level) == Connack(properties=properties)
    assert connection.is_connected
    assert connection.next_packet() is NEED_DATA


def test_connect_may_come_byte_by_byte() -> None:
    connection = new_connection()
    data = encode(Connect("alice", 5), 5)
    for byte in data[:-1]:
        connection.receive_data(bytes((byte,)))
        assert connection.next_packet() is NEED_DATA
    connection.receive_data(data[-1:])
    assert isinstance(connection.next_packet(), Connect)


def test_the_clients_limits_are_kept() -> None:
    connection = new_connection()
    properties: Properties = {"receive_maximum": 4, "maximum_packet_size": 99}
    connection.receive_data(encode(Connect("alice", 5, properties=properties), 5))
    connection.next_packet()
    assert connection.client_receive_maximum == 4
    assert connection.client_maximum_packet_size == 99


def test_a_client_without_limits_allows_all() -> None:
    connection = connected()
    assert connection.client_receive_maximum == MAX_RECEIVE_MAXIMUM
    assert connection.client_maximum_packet_size is None


@pytest.mark.parametrize("level", LEVELS)
def test_a_refusal_is_told_in_the_clients_words(level: int) -> None:
    connection = new_connection()
    connection.receive_data(encode(Connect("alice", level), level))
    connection.next_packet()
    answer = connection.refuse(ConnackReasonCode.SERVER_BUSY)
    packet = decoded(answer, level)
    assert isinstance(packet, Connack)
    expected = {
        3: ConnackReasonCode.SERVER_UNAVAILABLE,
        4: ConnackReasonCode.SERVER_UNAVAILABLE,
        5: ConnackReasonCode.SERVER_BUSY,
    }
    assert packet.reason_code is expected[level]
    assert connection.state is ConnectionState.CLOSED


@pytest.mark.clause("MQTT311-3.2.2-6")
@pytest.mark.parametrize(
    ("level", "has_word"), [(3, False), (4, False), (5, True)], ids=["3.1", "3.1.1", "5.0"]
)
def test_a_refusal_that_3x_has_no_word_for_is_silent(level: int, has_word: bool) -> None:
    connection = new_connection()
    connection.receive_data(encode(Connect("alice", level), level))
    connection.next_packet()
    assert bool(connection.refuse(ConnackReasonCode.RETAIN_NOT_SUPPORTED)) is has_word


@pytest.mark.clause("MQTT5-3.14.0-1")
@pytest.mark.parametrize("level", LEVELS)
def test_only_a_connected_5_0_client_gets_disconnect(level: int) -> None:
    connection = connected(level)
    answer = connection.close(DisconnectReasonCode.SERVER_SHUTTING_DOWN)
    if level == 5:
        assert decoded(answer, 5) == Disconnect(DisconnectReasonCode.SERVER_SHUTTING_DOWN)
    else:
        assert answer == b""
    assert connection.state is ConnectionState.CLOSED
    assert connection.close(DisconnectReasonCode.SERVER_SHUTTING_DOWN) == b""


def test_nothing_is_said_to_a_client_whose_version_is_unknown() -> None:
    assert new_connection().close(DisconnectReasonCode.SERVER_SHUTTING_DOWN) == b""


def test_the_level_of_a_malformed_connect_is_known_where_it_can_be_read() -> None:
    connection = new_connection()
    data = bytearray(encode(Connect("alice", 5), 5))
    data[9] |= 0x01  # the reserved connect flag [MQTT5-3.1.2-3]
    connection.receive_data(bytes(data))
    with pytest.raises(MalformedPacket):
        connection.next_packet()
    assert connection.protocol_level == 5


def test_a_connect_length_not_in_its_shortest_form_is_5_0s_mistake() -> None:
    connection = new_connection()
    data = encode(Connect("alice", 5), 5)
    connection.receive_data(bytes((data[0], data[1] | 0x80, 0)) + data[2:])
    with pytest.raises(MalformedPacket):
        connection.next_packet()
    assert connection.protocol_level == 5


@pytest.mark.parametrize(
    "data", [b"\x30\x03\0\x01a", b"\x10\x03\0\x04M", b"\x10\x07\0\x04XXXX\x05", b"\x10\x00"]
)
def test_the_level_of_what_is_no_connect_stays_unknown(data: bytes) -> None:
    connection = new_connection()
    connection.receive_data(data)
    with pytest.raises(RemoteProtocolError):
        connection.next_packet()
    assert connection.protocol_level == 0
    assert connection.state is ConnectionState.AWAITING_CONNECT


def test_an_unsupported_level_says_which_it_was() -> None:
    connection = new_connection()
    connection.receive_data(b"\x10\x0c\0\x04MQTT\x06\x02\0\x0a\0\0")
    with pytest.raises(UnsupportedProtocol) as caught:
        connection.next_packet()
    assert caught.value.protocol_level == 6


def test_a_topic_alias_is_filled_in() -> None:
    connection = connected()
    send(connection, publish("a/b", alias=2), publish("", alias=2), publish("c", alias=2))
    send(connection, publish("", alias=2), publish("a/b"))
    packets = [connection.next_packet() for _ in range(5)]
    assert [p.topic_name for p in packets if isinstance(p, Publish)] == [
        "a/b",
        "a/b",
        "c",
        "c",
        "a/b",
    ]
    assert all(not p.properties for p in packets if isinstance(p, Publish))


@pytest.mark.parametrize(
    ("packet", "reason_code"),
    [
        (publish("a", alias=4), DisconnectReasonCode.TOPIC_ALIAS_INVALID),
        (publish("", alias=3), DisconnectReasonCode.PROTOCOL_ERROR),
    ],
    ids=["above the maximum", "not set before"],
)
def test_a_wrong_topic_alias_is_refused(packet: Publish, reason_code: DisconnectReasonCode) -> None:
    connection = connected()
    send(connection, packet)
    with pytest.raises(ProtocolViolation) as caught:
        connection.next_packet()
    assert caught.value.reason_code == reason_code


@pytest.mark.clause("MQTT5-3.3.4-7")
def test_more_than_receive_maximum_unacknowledged_is_refused() -> None:
    connection = connected(receive_maximum=2)
    send(connection, publish(qos=1, packet_id=1), publish(), publish(qos=2, packet_id=2))
    for _ in range(3):
        connection.next_packet()
    assert connection.unacknowledged == 2
    connection.unacknowledged -= 1
    send(connection, publish(qos=1, packet_id=3), publish(qos=1, packet_id=4))
    connection.next_packet()
    with pytest.raises(ProtocolViolation) as caught:
        connection.next_packet()
    assert caught.value.reason_code == DisconnectReasonCode.RECEIVE_MAXIMUM_EXCEEDED


def test_3x_knows_no_receive_maximum() -> None:
    connection = connected(4, receive_maximum=2)
    send(connection, *(publish(qos=1, packet_id=number) for number in range(1, 5)))
    for _ in range(4):
        connection.next_packet()
    assert connection.unacknowledged == 4


def test_other_packets_pass() -> None:
    connection = connected()
    send(connection, Pingreq())
    assert connection.next_packet() == Pingreq()


def test_properties_without_an_alias_are_left_alone() -> None:
    connection = connected()
    send(connection, Publish("a", b"x", properties={"content_type": "text/plain"}))
    packet = connection.next_packet()
    assert isinstance(packet, Publish)
    assert packet.properties == {"content_type": "text/plain"}


def test_bytes_that_are_no_packet_yet_are_counted() -> None:
    connection = connected()
    connection.receive_data(encode(Pingreq(), 5)[:1])
    assert connection.buffered_bytes == 1


def test_a_level_that_is_not_allowed_is_unsupported() -> None:
    connection = new_connection()
    connection.allowed_levels = frozenset({5})
    connection.receive_data(encode(Connect("alice", 4), 4))
    with pytest.raises(UnsupportedProtocol, match=r"protocol level is 4, expected one of \[5\]"):
        connection.next_packet()


@pytest.mark.parametrize(
    ("properties", "most", "sent"),
    [
        ({"reason_string": "x" * 50}, 60, {"reason_string": "x" * 50}),
        ({"reason_string": "x" * 50}, 20, {}),
        (
            {"user_property": [("k", "v" * 50)], "server_reference": "b"},
            20,
            {"server_reference": "b"},
        ),
    ],
)
def test_words_for_people_are_left_out_of_what_is_too_large(
    properties: "Properties", most: int, sent: "Properties"
) -> None:
    connection = connected()
    connection.client_maximum_packet_size = most
    packet = Disconnect(DisconnectReasonCode.SERVER_SHUTTING_DOWN, properties)
    found = decoded(connection.encode(packet), 5)
    assert isinstance(found, Disconnect)
    assert found.properties == sent


@pytest.mark.parametrize(
    "packet", [publish("a" * 50), Publish("a", b"x" * 50, properties={"content_type": "t"})]
)
def test_what_is_too_large_all_the_same_is_not_sent(packet: Publish) -> None:
    connection = connected()
    connection.client_maximum_packet_size = 20
    assert connection.encode(packet) == b""


def test_a_stranger_may_send_less_than_a_client_that_was_let_in() -> None:
    most = MAX_PACKET_BYTES_BEFORE_LOGIN

    def connect(size: int) -> bytes:
        return encode(Connect("a", username="b", password=bytes(size)), 5)

    overhead = len(connect(most - 100)) - (most - 100)
    for size, is_taken in ((most - overhead, True), (most - overhead + 1, False)):
        connection = ServerConnection(
            max_packet_bytes=most * 4, receive_maximum=1, topic_alias_maximum=0
        )
        connection.receive_data(connect(size))
        if is_taken:
            assert isinstance(connection.next_packet(), Connect)
        else:
            with pytest.raises(PacketTooLarge):
                connection.next_packet()
            assert isinstance(
                decoded(connection.refuse(ConnackReasonCode.PACKET_TOO_LARGE), 5), Connack
            )
            continue
        connection.receive_data(encode(Publish("a", bytes(most * 2)), 5))
        with pytest.raises(PacketTooLarge):
            connection.next_packet()
    connection = ServerConnection(
        max_packet_bytes=most * 4, receive_maximum=1, topic_alias_maximum=0
    )
    connection.receive_data(connect(1))
    connection.next_packet()
    connection.accept(session_present=False, properties={})
    connection.receive_data(encode(Publish("a", bytes(most * 2)), 5))
    assert isinstance(connection.next_packet(), Publish)


def test_a_gateway_may_allow_even_less() -> None:
    connection = new_connection()
    connection.receive_data(encode(Connect("a", username="b", password=bytes(1000)), 5))
    with pytest.raises(PacketTooLarge, match="at most 1000"):
        connection.next_packet()


@pytest.mark.parametrize("in_will", [False, True])
def test_a_connect_may_have_100_user_properties_and_its_will_as_many(*, in_will: bool) -> None:
    def connect(count: int) -> bytes:
        pairs: Properties = {"user_property": [("", "")] * count}
        will = Will("a", b"", properties=pairs)
        return encode(Connect("a", will=will) if in_will else Connect("a", properties=pairs), 5)

    connection = new_connection()
    connection.receive_data(connect(MAX_USER_PROPERTIES_BEFORE_LOGIN))
    assert isinstance(connection.next_packet(), Connect)
    connection = new_connection()
    connection.receive_data(connect(MAX_USER_PROPERTIES_BEFORE_LOGIN + 1))
    with pytest.raises(ProtocolViolation) as caught:
        connection.next_packet()
    assert connection.protocol_level == 5
    assert decoded(connection.refuse(ConnackReasonCode(caught.value.reason_code)), 5) == Connack(
        reason_code=ConnackReasonCode.QUOTA_EXCEEDED
    )


def test_a_client_that_was_let_in_may_have_more_user_properties() -> None:
    def message(count: int) -> Publish:
        return Publish("a", b"", properties={"user_property": [("", "")] * count})

    connection = ServerConnection(
        max_packet_bytes=1_000_000, receive_maximum=1, topic_alias_maximum=0
    )
    connection.receive_data(encode(Connect("a"), 5))
    connection.next_packet()
    connection.accept(session_present=False, properties={})
    send(connection, message(MAX_USER_PROPERTIES), message(MAX_USER_PROPERTIES + 1))
    assert isinstance(connection.next_packet(), Publish)
    with pytest.raises(ProtocolViolation) as caught:
        connection.next_packet()
    assert DisconnectReasonCode(caught.value.reason_code) is DisconnectReasonCode.QUOTA_EXCEEDED
