from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.protocol import encoder as encoder_module
from ingest.protocol.decoder import NEED_DATA, Decoder
from ingest.protocol.encoder import (
    NORMAL_DISCONNECT,
    PINGREQ,
    PINGRESP,
    encode,
    encode_puback,
    encode_pubcomp,
    encode_pubrec,
    encode_pubrel,
    encode_topic_name,
)
from ingest.protocol.errors import LocalProtocolError
from ingest.protocol.fixed_header import Role
from ingest.protocol.packets import (
    Auth,
    Connack,
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
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from ingest.protocol.properties import PROPERTIES, Properties, PropertyContext, PropertyType
from ingest.protocol.reason_codes import (
    AuthReasonCode,
    ConnackReasonCode,
    DisconnectReasonCode,
    PubackReasonCode,
    PubcompReasonCode,
    PubrecReasonCode,
    PubrelReasonCode,
    SubackReasonCode,
    UnsubackReasonCode,
)

if TYPE_CHECKING:
    from tests.ingest.wire import WireRow


def test_a_packet_encodes_to_the_bytes_of_its_row(wire_row: WireRow) -> None:
    if wire_row.packet is None:
        return
    encoded = encode(wire_row.packet, wire_row.protocol_level)
    if wire_row.canonical:
        assert encoded.hex(" ") == wire_row.data.hex(" ")
    else:
        assert encoded != wire_row.data
        decoder = wire_row.decoder()
        decoder.receive_data(encoded)
        assert decoder.next_packet() == wire_row.packet


def test_the_fast_paths_make_what_encode_makes() -> None:
    assert encode_puback(258) == encode(Puback(258), 5) == b"\x40\x02\x01\x02"
    assert encode_pubrec(258) == encode(Pubrec(258), 4) == b"\x50\x02\x01\x02"
    assert encode_pubrel(258) == encode(Pubrel(258), 3) == b"\x62\x02\x01\x02"
    assert encode_pubcomp(258) == encode(Pubcomp(258), 5) == b"\x70\x02\x01\x02"
    assert encode(Pingreq(), 4) == PINGREQ
    assert encode(Pingresp(), 4) == PINGRESP
    assert encode(Disconnect(), 5) == NORMAL_DISCONNECT


# What 3.x cannot say is left out or told in the words it has.
@pytest.mark.parametrize(
    ("packet", "level", "expected"),
    [
        (Disconnect(DisconnectReasonCode.SERVER_SHUTTING_DOWN), 4, "e0 00"),
        (Puback(1, PubackReasonCode.QUOTA_EXCEEDED), 4, "40 02 00 01"),
        (Suback(1, [SubackReasonCode.NOT_AUTHORIZED]), 4, "90 03 00 01 80"),
        (Suback(1, [SubackReasonCode.GRANTED_QOS_2]), 3, "90 03 00 01 02"),
        (Unsuback(1, [UnsubackReasonCode.NO_SUBSCRIPTION_EXISTED]), 4, "b0 02 00 01"),
        (Subscribe(1, [Subscription("a", 1, no_local=True)]), 4, "82 06 00 01 00 01 61 01"),
        (Publish("a", b"", properties={"message_expiry_interval": 1}), 4, "30 03 00 01 61"),
        (Connack(session_present=True), 3, "20 02 00 00"),
        (Connack(reason_code=ConnackReasonCode.BANNED), 4, "20 02 00 05"),
        (Connack(reason_code=ConnackReasonCode.SERVER_BUSY), 3, "20 02 00 03"),
    ],
)
def test_lower_levels_leave_out_what_they_do_not_know(
    packet: Packet, level: int, expected: str
) -> None:
    assert encode(packet, level).hex(" ") == expected


LONG = "x" * 65_536


@pytest.mark.parametrize(
    ("packet", "level", "message"),
    [
        (Publish("a", b"", qos=3), 4, "QoS is 3"),
        (Publish("a", b"", dup=True), 4, "dup is set with QoS 0"),
        (Publish("a", b"", qos=1), 4, "packet identifier is 0"),
        (Publish("a", b"", qos=1, packet_id=65_536), 4, "packet identifier is 65536"),
        (Publish("a", b"", packet_id=1), 4, "packet identifier with QoS 0"),
        (Publish("", b""), 4, "topic name is empty"),
        (Publish("", b""), 5, "topic name is empty"),
        (Publish("", b"", properties={"topic_alias": 1}), 4, "topic name is empty"),
        (Publish("a/#", b""), 4, "wildcard"),
        (Publish("+", b""), 4, "wildcard"),
        (Publish("a\0", b""), 4, r"U\+0000"),
        (Publish("\ud800", b""), 4, "surrogate"),
        (Publish(LONG, b""), 4, "65536 bytes"),
        (Publish("a", b"x" * 268_435_455), 4, "variable byte integer"),
        (Publish("a", b"", properties={"topic_alias": 0}), 5, "topic_alias is 0"),
        (Publish("a", b"", properties={"payload_format_indicator": 2}), 5, "0 to 1"),
        (Publish("a", b"", properties={"message_expiry_interval": -1}), 5, "0 to 4294967295"),
        (Publish("a", b"", properties={"receive_maximum": 1}), 5, "not allowed in PUBLISH"),
        (Publish("a", b"", properties={"correlation_data": b"x" * 65_536}), 5, "binary data"),
        (Publish("a", b"", properties={"subscription_identifier": [0]}), 5, "1 to 268435455"),
        (Connect("c", 4), 5, "level 4 on a connection of level 5"),
        (Connect("c", 6), 6, "level 6"),
        (Connect("c", 5, bridge=True), 5, "bridge bit"),
        (Connect("c", 4, password=b"x"), 4, "password without a user name"),
        (Connect("c", 4, keep_alive=65_536), 4, "two byte integer is 65536"),
        (Connect("c", 4, will=Will("", b"")), 4, "will topic is empty"),
        (Connect("c", 4, will=Will("a/#", b"")), 4, "wildcard"),
        (Connect("c", 4, will=Will("a", b"", qos=3)), 4, "will QoS is 3"),
        (Connect("c", 4, will=Will("a", b"x" * 65_536)), 4, "65536 bytes"),
        (Connect("c", properties={"authentication_data": b""}), 5, "authentication method"),
        (Connack(session_present=True, reason_code=ConnackReasonCode.BANNED), 5, "session present"),
        (Connack(reason_code=ConnackReasonCode.PACKET_TOO_LARGE), 4, "PACKET_TOO_LARGE"),
        (Puback(0), 5, "packet identifier is 0"),
        (Subscribe(1, []), 4, "no topic filter"),
        (Subscribe(1, [Subscription("a", 3)]), 4, "requested QoS is 3"),
        (Subscribe(1, [Subscription("a", retain_handling=3)]), 5, "retain handling is 3"),
        (Subscribe(1, [Subscription("$share/g/a", no_local=True)]), 5, "no local"),
        (
            Subscribe(1, [Subscription("a")], {"subscription_identifier": [1, 2]}),
            5,
            "may stand once",
        ),
        (Suback(1, []), 4, "no code"),
        (Unsubscribe(1, []), 4, "no topic filter"),
        (Unsuback(1, []), 5, "no code"),
        (Auth(), 4, "5.0 only"),
        (Auth(AuthReasonCode.CONTINUE_AUTHENTICATION), 5, "authentication method"),
    ],
)
def test_what_cannot_be_said_is_a_local_error(packet: Packet, level: int, message: str) -> None:
    with pytest.raises(LocalProtocolError, match=message):
        encode(packet, level)


def test_topic_names_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, bytes] = {}
    monkeypatch.setattr(encoder_module, "_TOPIC_NAMES", names)
    monkeypatch.setattr(encoder_module, "_TOPIC_NAMES_LIMIT", 2)
    topics = ["a", "b", "a", "long" * 100, "c", "b"]
    assert [encode_topic_name(topic)[2:].decode() for topic in topics] == topics
    assert list(names) == ["c", "b"]


def test_an_unknown_property_is_a_local_error() -> None:
    properties: Any = {"topic_allias": 1}
    with pytest.raises(LocalProtocolError, match="topic_allias"):
        encode(Publish("a", b"", properties=properties), 5)


# Round trips: every packet that the model can hold comes back as it was.

levels = st.sampled_from([3, 4, 5])
packet_ids = st.integers(1, 0xFFFF)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
topic_names = st.text(
    st.characters(exclude_characters="\0+#", exclude_categories=["Cs"]), min_size=1, max_size=30
)
payloads = st.binary(max_size=300)
pairs = st.lists(st.tuples(texts, texts), min_size=1, max_size=3)


def property_values(name: str, context: PropertyContext) -> st.SearchStrategy[Any]:
    definition = next(item for item in PROPERTIES if item.name == name)
    if name == "response_topic":
        return topic_names
    if definition.type is PropertyType.UTF8_STRING_PAIR:
        return pairs
    if definition.type is PropertyType.UTF8_STRING:
        return texts
    if definition.type is PropertyType.BINARY_DATA:
        return st.binary(max_size=30)
    largest = {
        PropertyType.BYTE: 1,
        PropertyType.TWO_BYTE_INTEGER: 0xFFFF,
        PropertyType.FOUR_BYTE_INTEGER: 0xFFFF_FFFF,
        PropertyType.VARIABLE_BYTE_INTEGER: 268_435_455,
    }
    numbers = st.integers(definition.minimum, largest[definition.type])
    if definition.listed:
        most = 3 if context in definition.repeatable_in else 1
        return st.lists(numbers, min_size=1, max_size=most)
    return numbers


def properties_for(context: PropertyContext, level: int, *without: str) -> st.SearchStrategy[Any]:
    if level < 5:
        return st.just({})
    names = [item.name for item in PROPERTIES if context in item.sections]
    choices = {name: property_values(name, context) for name in names if name not in without}
    return st.fixed_dictionaries({}, optional=choices)


def round_trip(packet: Packet, level: int, role: Role) -> None:
    is_connect = isinstance(packet, Connect)
    decoder = Decoder(None if is_connect else level, role=role)
    decoder.receive_data(encode(packet, level))
    assert decoder.next_packet() == packet
    assert decoder.next_packet() is NEED_DATA


@st.composite
def wills(draw: st.DrawFn, level: int) -> Will:
    return Will(
        draw(topic_names),
        draw(payloads),
        draw(st.integers(0, 2)),
        draw(st.booleans()),
        draw(properties_for(PropertyContext.WILL, level)),
    )


@given(st.data(), levels)
def test_connect_comes_back(data: st.DataObject, level: int) -> None:
    username = data.draw(st.none() | texts)
    password = data.draw(st.none() | st.binary(max_size=30))
    properties: Properties = data.draw(properties_for(PropertyContext.CONNECT, level))
    if "authentication_method" not in properties:
        properties.pop("authentication_data", None)
    packet = Connect(
        data.draw(texts),
        level,
        data.draw(st.booleans()),
        data.draw(st.integers(0, 0xFFFF)),
        data.draw(st.none() | wills(level)),
        username,
        None if level == 4 and username is None else password,
        properties,
        level < 5 and data.draw(st.booleans()),
    )
    round_trip(packet, level, Role.SERVER)


@given(st.data(), levels)
def test_connack_comes_back(data: st.DataObject, level: int) -> None:
    codes = list(ConnackReasonCode) if level == 5 else [0x00, 0x84, 0x85, 0x86, 0x87, 0x88]
    reason_code = ConnackReasonCode(data.draw(st.sampled_from(codes)))
    session_present = not reason_code and level > 3 and data.draw(st.booleans())
    properties = data.draw(properties_for(PropertyContext.CONNACK, level))
    round_trip(Connack(session_present, reason_code, properties), level, Role.CLIENT)


@given(st.data(), levels, st.sampled_from(Role))
def test_publish_comes_back(data: st.DataObject, level: int, role: Role) -> None:
    qos = data.draw(st.integers(0, 2))
    without = ("subscription_identifier",) if role is Role.SERVER else ()
    properties = data.draw(properties_for(PropertyContext.PUBLISH, level, *without))
    topic_name = data.draw(topic_names)
    if "topic_alias" in properties and data.draw(st.booleans()):
        topic_name = ""
    packet = Publish(
        topic_name,
        data.draw(payloads),
        qos,
        data.draw(st.booleans()),
        qos > 0 and data.draw(st.booleans()),
        data.draw(packet_ids) if qos else 0,
        properties,
    )
    round_trip(packet, level, role)


@given(st.data(), levels, st.sampled_from(Role))
def test_acknowledgements_come_back(data: st.DataObject, level: int, role: Role) -> None:
    kinds: list[tuple[Any, Any, PropertyContext]] = [
        (Puback, PubackReasonCode, PropertyContext.PUBACK),
        (Pubrec, PubrecReasonCode, PropertyContext.PUBREC),
        (Pubrel, PubrelReasonCode, PropertyContext.PUBREL),
        (Pubcomp, PubcompReasonCode, PropertyContext.PUBCOMP),
    ]
    for packet_class, codes, context in kinds:
        reason_code = data.draw(st.sampled_from(codes)) if level == 5 else codes.SUCCESS
        properties = data.draw(properties_for(context, level))
        round_trip(packet_class(data.draw(packet_ids), reason_code, properties), level, role)


@given(st.data(), levels)
def test_subscribe_and_suback_come_back(data: st.DataObject, level: int) -> None:
    flag = st.booleans() if level == 5 else st.just(value=False)
    handling = st.integers(0, 2) if level == 5 else st.just(0)
    subscription = st.builds(Subscription, texts, st.integers(0, 2), flag, flag, handling)
    subscriptions = data.draw(st.lists(subscription, min_size=1, max_size=4))
    for item in subscriptions:
        item.no_local = item.no_local and not item.topic_filter.startswith("$share/")
    properties = data.draw(properties_for(PropertyContext.SUBSCRIBE, level))
    round_trip(Subscribe(data.draw(packet_ids), subscriptions, properties), level, Role.SERVER)
    codes = list(SubackReasonCode) if level == 5 else [SubackReasonCode(0), SubackReasonCode(0x80)]
    reason_codes = data.draw(st.lists(st.sampled_from(codes), min_size=1, max_size=4))
    properties = data.draw(properties_for(PropertyContext.SUBACK, level))
    round_trip(Suback(data.draw(packet_ids), reason_codes, properties), level, Role.CLIENT)


@given(st.data(), levels)
def test_unsubscribe_and_unsuback_come_back(data: st.DataObject, level: int) -> None:
    topic_filters = data.draw(st.lists(texts, min_size=1, max_size=4))
    properties = data.draw(properties_for(PropertyContext.UNSUBSCRIBE, level))
    round_trip(Unsubscribe(data.draw(packet_ids), topic_filters, properties), level, Role.SERVER)
    codes = st.lists(st.sampled_from(UnsubackReasonCode), min_size=1, max_size=4)
    reason_codes = data.draw(codes) if level == 5 else []
    properties = data.draw(properties_for(PropertyContext.UNSUBACK, level))
    round_trip(Unsuback(data.draw(packet_ids), reason_codes, properties), level, Role.CLIENT)


@given(st.data())
def test_disconnect_and_auth_come_back(data: st.DataObject) -> None:
    codes = data.draw(st.sampled_from(DisconnectReasonCode))
    properties: Properties = data.draw(properties_for(PropertyContext.DISCONNECT, 5))
    round_trip(Disconnect(codes, properties), 5, Role.SERVER)
    properties = data.draw(properties_for(PropertyContext.AUTH, 5))
    properties["authentication_method"] = data.draw(texts)
    round_trip(Auth(AuthReasonCode.CONTINUE_AUTHENTICATION, properties), 5, Role.CLIENT)
