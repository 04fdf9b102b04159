from __future__ import annotations

import copy
import pickle
import typing
from typing import Any

import pytest

from ingest.protocol.errors import LocalProtocolError
from ingest.protocol.packets import Publish
from ingest.protocol.properties import (
    NO_PROPERTIES,
    PROPERTIES,
    Properties,
    PropertyContext,
    PropertyType,
    decode_properties,
    encode_properties,
)

# MQTT 5.0, table 2-4, column "Packet / Will Properties", written again from the specification.
ALL = set(PropertyContext)
WILL, CONNECT, CONNACK, PUBLISH = (PropertyContext(value) for value in range(4))
ANSWERS = {
    CONNACK,
    PropertyContext.PUBACK,
    PropertyContext.PUBREC,
    PropertyContext.PUBREL,
    PropertyContext.PUBCOMP,
    PropertyContext.SUBACK,
    PropertyContext.UNSUBACK,
    PropertyContext.DISCONNECT,
    PropertyContext.AUTH,
}
TABLE_2_4 = {
    1: ("BYTE", {PUBLISH, WILL}),
    2: ("FOUR_BYTE_INTEGER", {PUBLISH, WILL}),
    3: ("UTF8_STRING", {PUBLISH, WILL}),
    8: ("UTF8_STRING", {PUBLISH, WILL}),
    9: ("BINARY_DATA", {PUBLISH, WILL}),
    11: ("VARIABLE_BYTE_INTEGER", {PUBLISH, PropertyContext.SUBSCRIBE}),
    17: ("FOUR_BYTE_INTEGER", {CONNECT, CONNACK, PropertyContext.DISCONNECT}),
    18: ("UTF8_STRING", {CONNACK}),
    19: ("TWO_BYTE_INTEGER", {CONNACK}),
    21: ("UTF8_STRING", {CONNECT, CONNACK, PropertyContext.AUTH}),
    22: ("BINARY_DATA", {CONNECT, CONNACK, PropertyContext.AUTH}),
    23: ("BYTE", {CONNECT}),
    24: ("FOUR_BYTE_INTEGER", {WILL}),
    25: ("BYTE", {CONNECT}),
    26: ("UTF8_STRING", {CONNACK}),
    28: ("UTF8_STRING", {CONNACK, PropertyContext.DISCONNECT}),
    31: ("UTF8_STRING", ANSWERS),
    33: ("TWO_BYTE_INTEGER", {CONNECT, CONNACK}),
    34: ("TWO_BYTE_INTEGER", {CONNECT, CONNACK}),
    35: ("TWO_BYTE_INTEGER", {PUBLISH}),
    36: ("BYTE", {CONNACK}),
    37: ("BYTE", {CONNACK}),
    38: ("UTF8_STRING_PAIR", ALL),
    39: ("FOUR_BYTE_INTEGER", {CONNECT, CONNACK}),
    40: ("BYTE", {CONNACK}),
    41: ("BYTE", {CONNACK}),
    42: ("BYTE", {CONNACK}),
}


def test_the_table_is_table_2_4_of_the_specification() -> None:
    ours = {item.identifier: (item.type.name, set(item.sections)) for item in PROPERTIES}
    assert ours == TABLE_2_4


def test_the_typed_dict_names_every_property_with_its_type() -> None:
    types = {
        PropertyType.UTF8_STRING: str,
        PropertyType.BINARY_DATA: bytes,
        PropertyType.UTF8_STRING_PAIR: list[tuple[str, str]],
    }
    expected = {
        item.name: list[int]
        if item.name == "subscription_identifier"
        else types.get(item.type, int)
        for item in PROPERTIES
    }
    assert typing.get_type_hints(Properties) == expected


def test_every_section_belongs_to_its_packet() -> None:
    chapters = {PropertyContext.WILL: "3.1.3.2."} | {
        context: f"3.{context.value}.2." for context in PropertyContext if context
    }
    for item in PROPERTIES:
        for context, section in item.sections.items():
            assert section.startswith(chapters[context]), (item.name, context)


def test_a_property_with_a_range_is_checked() -> None:
    for item in PROPERTIES:
        has_range = item.minimum > 0 or item.maximum is not None
        assert item.checked == (has_range or item.name == "response_topic"), item.name


def test_no_properties_is_empty_and_stays_empty() -> None:
    assert NO_PROPERTIES == {}
    assert Publish("a", b"").properties is NO_PROPERTIES
    shared: Any = NO_PROPERTIES
    with pytest.raises(TypeError, match="shared"):
        shared["topic_alias"] = 1
    with pytest.raises(TypeError, match="shared"):
        shared.update(topic_alias=1)
    with pytest.raises(TypeError, match="shared"):
        shared.setdefault("topic_alias", 1)
    with pytest.raises(TypeError, match="shared"):
        shared |= {"topic_alias": 1}
    assert NO_PROPERTIES == {}
    assert copy.deepcopy(NO_PROPERTIES) == pickle.loads(pickle.dumps(NO_PROPERTIES)) == {}


def test_no_properties_can_be_hashed_because_it_is_constant() -> None:
    shared: Any = NO_PROPERTIES
    assert hash(shared) == 0


def test_decoding_starts_at_the_offset_and_tells_where_it_ended() -> None:
    body = b"xx\x03\x23\x00\x07yy"
    assert decode_properties(body, 2, PropertyContext.PUBLISH) == ({"topic_alias": 7}, 6)
    assert decode_properties(b"x\0y", 1, PropertyContext.PUBLISH) == ({}, 2)


@pytest.mark.clause("MQTT5-2.2.2-1")
def test_no_properties_are_encoded_as_length_zero() -> None:
    assert encode_properties({}, PropertyContext.CONNECT) == b"\0"


def test_a_property_of_another_packet_cannot_be_encoded() -> None:
    with pytest.raises(LocalProtocolError, match="will_delay_interval is not allowed in CONNECT"):
        encode_properties({"will_delay_interval": 1}, PropertyContext.CONNECT)
