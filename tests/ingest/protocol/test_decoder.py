from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from ingest.protocol import decoder as decoder_module
from ingest.protocol.decoder import NEED_DATA, Decoder
from ingest.protocol.encoder import PINGRESP, encode
from ingest.protocol.errors import (
    MalformedPacket,
    PacketTooLarge,
    ProtocolViolation,
    RemoteProtocolError,
    UnsupportedProtocol,
)
from ingest.protocol.fixed_header import Role
from ingest.protocol.packets import (
    Auth,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from ingest.protocol.properties import NO_PROPERTIES, Properties
from ingest.protocol.reason_codes import (
    AuthReasonCode,
    DisconnectReasonCode,
    PubackReasonCode,
    PubcompReasonCode,
    PubrecReasonCode,
    PubrelReasonCode,
)
from tests.cases import case

if TYPE_CHECKING:
    from tests.ingest.wire import WireRow

CONNECT_5 = bytes.fromhex("10 0e 00 04 4d 51 54 54 05 02 00 00 00 00 01 63")
CONNECT_4 = bytes.fromhex("10 0d 00 04 4d 51 54 54 04 02 00 00 00 01 63")
PUBLISH_4 = bytes.fromhex("30 05 00 01 61 68 69")


def test_a_row_decodes_the_same_however_it_is_cut(wire_row: WireRow) -> None:
    for chunk_bytes in (1, 2, 3, 7, 1_000_000):
        with case(f"in chunks of {chunk_bytes} bytes"):
            decode_in_chunks(wire_row, chunk_bytes)


@pytest.mark.parametrize("cut", [1, 2, 3, 8, 9, 10])
def test_a_pingreq_ahead_is_known_however_it_is_cut(cut: int) -> None:
    pingreq, data = b"\xc0\x00", CONNECT_4 + b"\xc0\x00" + PUBLISH_4 + b"\xc0\x00"
    decoder = Decoder(None)
    for start in range(0, len(data), cut):
        decoder.receive_data(data[start : start + cut])
    ahead = [CONNECT_4, pingreq, PUBLISH_4, pingreq]
    for packet in ahead:
        assert decoder.has_pingreq is (packet == pingreq)
        assert decoder.next_packet() is not NEED_DATA
    assert not decoder.has_pingreq
    decoder.receive_data(b"\xc0")
    assert not decoder.has_pingreq, "it is not whole"
    decoder.receive_data(b"\x00")
    assert decoder.has_pingreq


def decode_in_chunks(wire_row: WireRow, chunk_bytes: int) -> None:
    decoder = wire_row.decoder()
    data = wire_row.data
    decoded = []
    error: RemoteProtocolError | None = None
    for start in range(0, len(data), chunk_bytes):
        decoder.receive_data(data[start : start + chunk_bytes])
        try:
            while (packet := decoder.next_packet()) is not NEED_DATA:
                decoded.append(packet)
        except RemoteProtocolError as exc:
            error = exc
            break
    if wire_row.packet is not None:
        assert error is None
        assert decoded == [wire_row.packet]
        assert decoder.buffered_bytes == 0
        return
    assert decoded == []
    assert error is not None
    assert (error.reason_code, error.clause) == (wire_row.reason_code, wire_row.clause)
    assert error.clause in str(error)


def test_the_error_class_follows_the_reason_code(wire_rows: list[WireRow]) -> None:
    classes = {0x81: MalformedPacket, 0x84: UnsupportedProtocol, 0x95: PacketTooLarge}
    for row in wire_rows:
        if row.packet is None:
            decoder = row.decoder()
            decoder.receive_data(row.data)
            with pytest.raises(RemoteProtocolError) as caught:
                decoder.next_packet()
            assert type(caught.value) is classes.get(row.reason_code, ProtocolViolation), row.name


def test_all_valid_rows_of_a_version_decode_as_one_stream(wire_rows: list[WireRow]) -> None:
    for level in (3, 4, 5):
        for role in Role:
            rows = [
                row
                for row in wire_rows
                if row.packet is not None
                and row.protocol_level == level
                and row.role is role
                and not row.file.startswith("connect-")
            ]
            stream = b"".join(row.data for row in rows)
            for chunk_bytes in (len(stream), 1000, 11):
                decoder = Decoder(level, role=role)
                decoded = []
                for start in range(0, len(stream), chunk_bytes):
                    decoder.receive_data(stream[start : start + chunk_bytes])
                    while (packet := decoder.next_packet()) is not NEED_DATA:
                        decoded.append(packet)
                assert decoded == [row.packet for row in rows]


def test_the_level_is_learned_from_the_connect() -> None:
    decoder = Decoder()
    assert decoder.protocol_level is None
    decoder.receive_data(CONNECT_5 + bytes.fromhex("82 07 00 01 00 00 01 61 04"))
    connect = decoder.next_packet()
    assert isinstance(connect, Connect)
    assert decoder.protocol_level == 5
    subscribe = decoder.next_packet()
    assert isinstance(subscribe, Subscribe)
    assert subscribe.subscriptions[0].no_local
    assert decoder.next_packet() is NEED_DATA


def test_a_second_connect_is_a_protocol_error() -> None:
    for connect, clause in ((CONNECT_4, "MQTT311-3.1.0-2"), (CONNECT_5, "MQTT5-3.1.0-2")):
        decoder = Decoder()
        decoder.receive_data(connect + connect)
        decoder.next_packet()
        with pytest.raises(ProtocolViolation) as caught:
            decoder.next_packet()
        assert caught.value.clause == clause


def test_a_client_has_to_know_its_level() -> None:
    with pytest.raises(ValueError, match="protocol level"):
        Decoder(role=Role.CLIENT)


def test_an_unsupported_connect_tells_name_and_level() -> None:
    decoder = Decoder()
    decoder.receive_data(bytes.fromhex("10 0d 00 04 4d 51 54 54 06 02 00 00 00 01 63"))
    with pytest.raises(UnsupportedProtocol) as caught:
        decoder.next_packet()
    assert (caught.value.protocol_name, caught.value.protocol_level) == ("MQTT", 6)


def test_an_error_ends_the_decoder() -> None:
    decoder = Decoder(4)
    decoder.receive_data(PUBLISH_4 + b"\xff\x00" + PUBLISH_4)
    assert isinstance(decoder.next_packet(), Publish)
    with pytest.raises(MalformedPacket) as first:
        decoder.next_packet()
    decoder.receive_data(PUBLISH_4)
    assert decoder.buffered_bytes == 0
    with pytest.raises(MalformedPacket) as second:
        decoder.next_packet()
    assert second.value is first.value


def test_a_packet_of_the_largest_size_is_accepted() -> None:
    decoder = Decoder(4, len(PUBLISH_4))
    decoder.receive_data(PUBLISH_4)
    assert decoder.next_packet() == Publish("a", b"hi")


@pytest.mark.parametrize(
    ("role", "level", "clause"),
    [
        (Role.SERVER, 4, "MQTT311-2.2.3"),
        (Role.SERVER, 5, "MQTT5-3.2.2-15"),
        (Role.CLIENT, 5, "MQTT5-3.1.2-24"),
    ],
)
def test_a_packet_too_large_is_refused_before_its_body(role: Role, level: int, clause: str) -> None:
    decoder = Decoder(level, 1000, role=role)
    decoder.receive_data(bytes.fromhex("30 e6 07"))  # 998 bytes of body, 1001 in all
    with pytest.raises(PacketTooLarge) as caught:
        decoder.next_packet()
    assert (caught.value.reason_code, caught.value.clause) == (0x95, clause)


@pytest.mark.parametrize(
    ("protocol", "level"),
    [(b"\0\4MQTT\5", 5), (b"\0\4MQTT\4", 4), (b"\0\6MQIsdp\3", None), (b"\0\4MOTT\5", None)],
)
def test_a_connect_too_large_is_refused_as_soon_as_its_level_is_known(
    protocol: bytes, level: int | None
) -> None:
    decoder = Decoder(None, 1000)
    for byte in b"\x10\xff\xff\xff\x7f" + protocol[:6]:
        decoder.receive_data(bytes((byte,)))
        assert decoder.next_packet() is NEED_DATA
    decoder.receive_data(protocol[6:7])
    with pytest.raises(PacketTooLarge, match="at most 1000"):
        decoder.next_packet()
    assert decoder.protocol_level == level


PAIRS: Properties = {"user_property": [("", "")] * 3}
WITH_PAIRS: dict[str, tuple[Packet, int | None]] = {
    "CONNECT": (Connect("alice", properties=PAIRS), None),
    "will": (Connect("alice", will=Will("a", b"", properties=PAIRS)), None),
    "PUBLISH": (Publish("a", b"", properties=PAIRS), 5),
    "PUBACK": (Puback(1, PubackReasonCode.SUCCESS, PAIRS), 5),
    "PUBREC": (Pubrec(1, PubrecReasonCode.SUCCESS, PAIRS), 5),
    "PUBREL": (Pubrel(1, PubrelReasonCode.SUCCESS, PAIRS), 5),
    "PUBCOMP": (Pubcomp(1, PubcompReasonCode.SUCCESS, PAIRS), 5),
    "SUBSCRIBE": (Subscribe(1, [Subscription("a")], PAIRS), 5),
    "UNSUBSCRIBE": (Unsubscribe(1, ["a"], PAIRS), 5),
    "DISCONNECT": (Disconnect(DisconnectReasonCode.NORMAL_DISCONNECTION, PAIRS), 5),
    "AUTH": (
        Auth(
            AuthReasonCode.CONTINUE_AUTHENTICATION,
            {"authentication_method": "x", "user_property": PAIRS["user_property"]},
        ),
        5,
    ),
}


@pytest.mark.parametrize("name", WITH_PAIRS)
def test_user_properties_are_counted_in_every_packet_of_a_client(name: str) -> None:
    packet, level = WITH_PAIRS[name]
    data = encode(packet, 5)
    decoder = Decoder(level, max_user_properties=3)
    decoder.receive_data(data)
    assert decoder.next_packet() == packet
    decoder = Decoder(level, max_user_properties=2)
    decoder.receive_data(data)
    with pytest.raises(ProtocolViolation, match="more than 2 times") as caught:
        decoder.next_packet()
    assert caught.value.reason_code == 0x97
    assert decoder.protocol_level == 5


def test_user_properties_beyond_the_maximum_are_not_read() -> None:
    properties = b"\x26\0\1a\0\1b" * 2 + b"\x26\xff\xff\xff"  # the third is malformed
    body = b"\0\1a" + bytes((len(properties),)) + properties
    decoder = Decoder(5, max_user_properties=2)
    decoder.receive_data(b"\x30" + bytes((len(body),)) + body)
    with pytest.raises(ProtocolViolation, match="user_property appears more than 2 times"):
        decoder.next_packet()


def test_subscription_identifiers_of_a_client_are_not_read_without_end() -> None:
    packet = Publish("a", b"", properties={"subscription_identifier": [1] * 3})
    decoder = Decoder(5, max_user_properties=2)
    decoder.receive_data(encode(packet, 5))
    with pytest.raises(ProtocolViolation, match="more than 2 times"):
        decoder.next_packet()


def test_a_forbidden_first_byte_is_refused_before_the_body() -> None:
    decoder = Decoder(5)
    decoder.receive_data(b"\x36\xff\x7f")
    with pytest.raises(MalformedPacket, match="0x36"):
        decoder.next_packet()


def test_data_beyond_the_packet_stays_for_the_next_one() -> None:
    decoder = Decoder(5)
    decoder.receive_data(b"\x40\x02\x00\x01\x40\x02\x00")
    assert decoder.next_packet() == Puback(1)
    assert decoder.next_packet() is NEED_DATA
    assert decoder.buffered_bytes == 3
    decoder.receive_data(b"\x02\xc0\x00")
    assert decoder.next_packet() == Puback(2)
    assert decoder.next_packet() == Pingreq()
    assert decoder.buffered_bytes == 0


def test_chunks_may_arrive_before_anybody_asks_for_packets() -> None:
    decoder = Decoder(4)
    for byte in PUBLISH_4 * 3:
        decoder.receive_data(bytes((byte,)))
    for _ in range(3):
        assert decoder.next_packet() == Publish("a", b"hi")
    assert decoder.next_packet() is NEED_DATA


def test_empty_chunks_change_nothing() -> None:
    decoder = Decoder(4)
    decoder.receive_data(b"")
    assert decoder.next_packet() is NEED_DATA
    decoder.receive_data(PUBLISH_4[:3])
    decoder.receive_data(b"")
    decoder.receive_data(PUBLISH_4[3:])
    assert decoder.next_packet() == Publish("a", b"hi")


def test_a_large_packet_in_small_chunks_costs_linear_time() -> None:
    def seconds_for(payload_bytes: int) -> float:
        data = encode(Publish("a", b"x" * payload_bytes), 4)
        decoder = Decoder(4)
        started = time.process_time()  # not the time of others
        for start in range(0, len(data), 500):
            assert decoder.next_packet() is NEED_DATA
            decoder.receive_data(data[start : start + 500])
        packet = decoder.next_packet()
        elapsed = time.process_time() - started
        assert isinstance(packet, Publish)
        assert len(packet.payload) == payload_bytes
        return elapsed

    small = min(seconds_for(500_000) for _ in range(3))
    large = min(seconds_for(4_000_000) for _ in range(3))
    # Eight times the bytes: linear is 8, quadratic is 64.
    assert large < 32 * small


def test_packets_without_properties_share_one_empty_mapping() -> None:
    decoder = Decoder(5)
    decoder.receive_data(bytes.fromhex("30 04 00 01 61 00 40 02 00 01"))
    for _ in range(2):
        packet = decoder.next_packet()
        assert isinstance(packet, (Publish, Puback))
        assert packet.properties is NO_PROPERTIES


def test_the_client_side_reads_what_a_server_sends() -> None:
    decoder = Decoder(5, role=Role.CLIENT)
    decoder.receive_data(PINGRESP)
    assert decoder.next_packet() == Pingresp()


def test_repeated_topic_names_are_one_string_and_the_memory_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names: dict[bytes, str] = {}
    monkeypatch.setattr(decoder_module, "_TOPIC_NAMES", names)
    monkeypatch.setattr(decoder_module, "_TOPIC_NAMES_LIMIT", 2)
    decoder = Decoder(4)

    def decode(topic_name: str) -> str:
        decoder.receive_data(encode(Publish(topic_name, b""), 4))
        packet = decoder.next_packet()
        assert isinstance(packet, Publish)
        return packet.topic_name

    assert decode("plant/1") is decode("plant/1")
    decode("plant/2")
    assert list(names) == [b"plant/1", b"plant/2"]
    decode("plant/3")
    assert list(names) == [b"plant/3"]
    assert decode("x" * 129) == "x" * 129
    assert list(names) == [b"plant/3"]
