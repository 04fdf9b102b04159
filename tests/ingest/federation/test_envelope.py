"""One envelope on each kind of hop."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.federation.envelope import (
    ChainKey,
    InvalidEnvelope,
    SiteMessage,
    from_header,
    from_mqtt,
    read,
    to_header,
    to_mqtt,
    write,
)
from ingest.protocol.decoder import Decoder
from ingest.protocol.encoder import encode
from ingest.protocol.fixed_header import Role
from ingest.protocol.packets import Publish
from ingest.protocol.properties import NO_PROPERTIES, Properties

NUMBERS = st.integers(0, 2**50)
PROPERTIES: st.SearchStrategy[Properties] = st.one_of(
    st.just(NO_PROPERTIES),
    st.fixed_dictionaries(
        {},
        optional={
            "content_type": st.just("text/plain"),
            "response_topic": st.just("answers/here"),
            "correlation_data": st.binary(max_size=20),
            "message_expiry_interval": st.integers(0, 2**32 - 1),
            "payload_format_indicator": st.just(1),
            "user_property": st.lists(
                st.sampled_from([("a", "b"), ("mqlake-federation", "1.2.3")]), min_size=1
            ),
        },
    ).map(lambda found: found or NO_PROPERTIES),
)
MESSAGES = st.builds(
    SiteMessage,
    key=st.builds(ChainKey, NUMBERS, NUMBERS, st.sampled_from(["a", "a/b", "/", "ä/ö.1/x y"])),
    sequence=st.integers(10, 2**50),
    after=st.integers(0, 9),
    gap_ms=NUMBERS,
    stamp=NUMBERS,
    payload=st.binary(max_size=20),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    properties=PROPERTIES,
    hops=st.integers(0, 255),
    age_ms=NUMBERS,
    partition=st.integers(0, 64),
)


def over_mqtt(message: SiteMessage, sender: int, level: int) -> tuple[SiteMessage, int]:
    """Take a message over the wire as a broker would."""
    topic, properties = to_mqtt(message, sender, prefix="federator", protocol_level=level)
    decoder = Decoder(level, role=Role.CLIENT)
    decoder.receive_data(encode(Publish(topic, message.payload, properties=properties), level))
    packet = decoder.next_packet()
    assert isinstance(packet, Publish)
    return from_mqtt(packet.topic_name, packet.payload, packet.properties, prefix="federator")


@given(MESSAGES, NUMBERS)
def test_every_kind_of_hop_carries_the_same(message: SiteMessage, sender: int) -> None:
    assert over_mqtt(message, sender, 5) == (message, sender)
    assert over_mqtt(message, sender, 4) == (message, sender)
    name, value = to_header(message, sender)
    assert name == "mqlake-federation"
    # A record has the properties in a header of their own.
    bare = replace(message, properties=NO_PROPERTIES)
    assert from_header(value, message.topic, message.payload) == (bare, sender)


@given(MESSAGES, st.lists(st.sampled_from((4, 5)), min_size=1, max_size=6))
def test_the_origin_is_kept_over_hops_of_all_kinds(message: SiteMessage, levels: list[int]) -> None:
    carried = message
    for sender, level in enumerate(levels):
        carried, _ = over_mqtt(replace(carried, hops=sender), sender, level)
    assert replace(carried, hops=message.hops) == message


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    for form in (text, "2." + text):
        try:
            read(form, "a", b"")
        except InvalidEnvelope:
            continue


@pytest.mark.parametrize(
    ("text", "topic"),
    [
        ("2.1.1.0.5.5.0.0.0.0.0.1", "a"),  # after is not before
        ("2.1.1.0.5.4.0.0.0.0.3.1", "a"),  # QoS 3
        ("2.1.1.0.5.4.0.0.0.0.8.1", "a"),  # unknown flag
        ("1.1.1.0.5.4.0.0.0.0.0.1", "a"),  # another version
        ("2.1.1.0.5.4.0.0.0.0.0", "a"),
        ("2.1.1.0.5.4.0.0.0.0.0.1.!!", "a"),
        ("2.1.1.0.5.4.0.0.0.0.0.1", "a/#"),
        ("2.1.1.0.5.4.0.0.0.0.0.1", "$SYS/x"),
    ],
)
def test_what_cannot_be_is_refused(text: str, topic: str) -> None:
    with pytest.raises(InvalidEnvelope):
        read(text, topic, b"")


def test_a_publish_of_a_client_in_the_federators_topics_is_refused() -> None:
    with pytest.raises(InvalidEnvelope):
        from_mqtt("federator/routing/a", b"", NO_PROPERTIES, prefix="federator")


def test_the_text_is_fit_for_a_topic_level() -> None:
    key = ChainKey(1, 2, "a")
    properties: Properties = {"correlation_data": bytes(range(256))}
    text = write(SiteMessage(key, 9, 8, 7, 6, b"", 1, True, properties), 5, with_properties=True)
    assert not set(text) & set("/+#")
    assert text.startswith("2.1.2.0.9.8.7.0.0.6.5.5.")
