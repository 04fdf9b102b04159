from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.protocol.encoder import encode
from ingest.protocol.errors import LocalProtocolError
from ingest.protocol.packets import Publish
from ingest.protocol.publish_template import PublishTemplate

if TYPE_CHECKING:
    from ingest.protocol.properties import Properties

PROPERTIES: Properties = {"content_type": "text/plain", "user_property": [("a", "b")]}


@given(
    level=st.sampled_from([3, 4, 5]),
    qos=st.integers(0, 2),
    dup=st.booleans(),
    retain=st.booleans(),
    packet_id=st.integers(1, 0xFFFF),
    payload=st.binary(max_size=300),
)
def test_a_template_makes_what_encode_makes(
    level: int, qos: int, dup: bool, retain: bool, packet_id: int, payload: bytes
) -> None:
    dup = dup and qos > 0
    template = PublishTemplate("a/b", payload, PROPERTIES, protocol_level=level)
    publish = Publish("a/b", payload, qos, retain, dup, packet_id if qos else 0, PROPERTIES)
    made = template.to_bytes(qos=qos, dup=dup, retain=retain, packet_id=packet_id)
    assert made == encode(publish, level)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("omit_topic_name", [False, True])
def test_one_subscribers_own_properties_are_added(qos: int, omit_topic_name: bool) -> None:
    template = PublishTemplate("a/b", b"hi", PROPERTIES, protocol_level=5)
    made = template.to_bytes(
        qos=qos,
        packet_id=7,
        subscription_identifiers=(1, 300),
        topic_alias=9,
        omit_topic_name=omit_topic_name,
    )
    properties: Properties = {
        **PROPERTIES,
        "subscription_identifier": [1, 300],
        "topic_alias": 9,
    }
    topic_name = "" if omit_topic_name else "a/b"
    publish = Publish(topic_name, b"hi", qos, packet_id=7 if qos else 0, properties=properties)
    assert made == encode(publish, 5)


def test_a_subscription_identifier_alone_is_added_to_none() -> None:
    template = PublishTemplate("a", b"", protocol_level=5)
    made = template.to_bytes(subscription_identifiers=[1])
    assert made == encode(Publish("a", b"", properties={"subscription_identifier": [1]}), 5)


def test_a_topic_alias_alone_is_added_to_none() -> None:
    template = PublishTemplate("a", b"", protocol_level=5)
    made = template.to_bytes(topic_alias=3)
    assert made == encode(Publish("a", b"", properties={"topic_alias": 3}), 5)


def test_qos_0_is_encoded_once() -> None:
    template = PublishTemplate("a", b"hi", protocol_level=4)
    assert template.to_bytes() is template.to_bytes()
    assert template.to_bytes(retain=True) is template.to_bytes(retain=True)
    assert template.to_bytes() != template.to_bytes(retain=True)


def test_templates_refuse_what_belongs_to_one_subscriber() -> None:
    with pytest.raises(LocalProtocolError, match="one subscriber"):
        PublishTemplate("a", b"", {"topic_alias": 1}, protocol_level=5)
    with pytest.raises(LocalProtocolError, match="empty"):
        PublishTemplate("", b"", protocol_level=5)


def test_values_out_of_range_are_local_errors() -> None:
    template = PublishTemplate("a", b"", protocol_level=5)
    with pytest.raises(LocalProtocolError, match="QoS is 3"):
        template.to_bytes(qos=3, packet_id=1)
    with pytest.raises(LocalProtocolError, match="packet identifier is 0"):
        template.to_bytes(qos=1)
    with pytest.raises(LocalProtocolError, match="dup"):
        template.to_bytes(dup=True)
    with pytest.raises(LocalProtocolError, match="without a topic alias"):
        template.to_bytes(omit_topic_name=True)
    with pytest.raises(LocalProtocolError, match=r"5\.0 only"):
        PublishTemplate("a", b"", protocol_level=4).to_bytes(topic_alias=1)
