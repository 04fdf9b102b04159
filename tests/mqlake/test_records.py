import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import InvalidRecord
from mqlake.records import messages as records
from mqlake.records.messages import (
    Barrier,
    Message,
    Route,
    Source,
    barrier_key,
    decode_barrier_key,
    decode_message,
    decode_properties,
    decode_route_key,
    decode_source,
    delivery_topic,
    encode_properties,
    encode_source,
    is_retained,
    message_headers,
    message_key,
    mqtt_header,
    route_key,
)
from mqlake.records.versions import HEADER_MQTT, RECORD_VERSION, Headers

DOCUMENT = Path(__file__).parents[2] / "docs" / "records.md"
LOG_TOPICS = {
    *("INBOUND", "ROUTES", "SESSIONS", "EVENTS", "GATEWAYS"),
    *("RULES", "OUTPUTS", "DEAD_LETTERS", "METRICS", "RUNNER"),
}

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
NAMES = st.from_regex(r"[a-z0-9-]{1,12}", fullmatch=True)
# By specification name, with the types that the codec gives them.
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "payload_format_indicator": st.integers(0, 1),
        "message_expiry_interval": st.integers(0, 2**32 - 1),
        "content_type": TEXT,
        "response_topic": TEXT,
        "correlation_data": st.binary(max_size=20),
        "user_property": st.lists(st.tuples(TEXT, TEXT), max_size=3),
    },
)
MESSAGES = st.builds(
    Message,
    tenant=NAMES,
    topic_name=TEXT.filter(bool),
    payload=st.binary(max_size=50),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    dup=st.booleans(),
    message_id=st.binary(min_size=16, max_size=16),
    client_id=TEXT,
    received_at_ms=st.integers(0, 2**45),
    origin=NAMES,
    protocol_level=st.sampled_from([3, 4, 5]),
    username=st.none() | TEXT,
    properties=st.none() | PROPERTIES.filter(bool),
)


@given(MESSAGES)
def test_a_message_comes_back_from_its_record(message: Message) -> None:
    decoded = decode_message(
        message_key(message.tenant, message.topic_name),
        message.payload,
        message_headers(message),
        message.received_at_ms,
    )
    assert decoded == message


def test_a_record_without_a_value_is_a_message_without_a_payload() -> None:
    headers = message_headers(a_message())
    assert decode_message(b"default/a", None, headers, 0).payload == b""


def test_a_reader_ignores_headers_it_does_not_know() -> None:
    headers = [*message_headers(a_message()), ("later", b"\xff")]
    assert decode_message(b"default/a", b"", headers, 0).client_id == "c"


@pytest.mark.parametrize(
    ("key", "change", "reason"),
    [
        (b"default/a", {"mqtt": None}, "version"),
        (b"default/a", {"mqtt": b"\5\4\0"}, "version"),
        (b"default/a", {"mqtt": b"\1\4"}, "version"),
        (b"default/a", {"id": None}, "'id' is missing"),
        (b"default/a", {"client_id": None}, "'client_id' is missing"),
        (b"default/a", {"origin": None}, "'origin' is missing"),
        (b"default/a", {"client_id": b"\xff"}, "not UTF-8"),
        (b"default/a", {"properties": b"{"}, "not JSON"),
        (b"default/a", {"properties": b"[1]"}, "not a JSON object"),
        (b"default/a", {"properties": b"\xff"}, "not JSON"),
        (b"default/a", {"properties": b'{"user_property": 1}'}, "user_property"),
        (b"default/a", {"properties": b'{"user_property": [[1]]}'}, "user_property"),
        (b"default/a", {"properties": b'{"a": {"base64": "?"}}'}, "not JSON"),
        (b"default/a", {"properties": b"[" * 100_000}, "not JSON"),
        (b"default", {}, "no tenant"),
        (b"\xff/a", {}, "not UTF-8"),
    ],
)
def test_a_record_of_another_form_is_refused(
    key: bytes, change: dict[str, bytes | None], reason: str
) -> None:
    headers = dict(message_headers(a_message())) | change
    kept: Headers = [(name, value) for name, value in headers.items() if value is not None]
    with pytest.raises(InvalidRecord, match=reason):
        decode_message(key, b"", kept, 0)


@given(
    st.lists(st.tuples(st.sampled_from(["mqtt", "id", "client_id", "properties"]), st.binary())),
    st.binary(),
)
def test_whatever_the_bytes_reading_gives_a_message_or_the_one_error(
    headers: Headers, key: bytes
) -> None:
    with contextlib.suppress(InvalidRecord):
        decode_message(key, b"", [*message_headers(a_message()), *headers], 0)


@given(PROPERTIES)
def test_properties_come_back_from_json(properties: dict[str, Any]) -> None:
    assert decode_properties(encode_properties(properties)) == properties


def test_a_property_of_a_type_without_json_form_is_our_mistake() -> None:
    with pytest.raises(TypeError, match="set"):
        encode_properties({"a": {1}})


@given(
    st.integers(0, 10**6),
    st.integers(0, 2**62),
    st.integers(0, 2**45),
    st.lists(TEXT.filter(lambda text: bool(text) and "\n" not in text).map("$share/g/{}".format)),
)
def test_a_source_comes_back_from_its_header(
    partition: int, offset: int, received_at_ms: int, shared: list[str]
) -> None:
    source = Source(partition, offset, received_at_ms, tuple(shared))
    assert decode_source(encode_source(source)) == source


@pytest.mark.parametrize("data", [b"", b"1:2", b"1:2:3:4", b"a:2:3", b"\xff", b"\n1:2:3"])
def test_a_source_of_another_form_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRecord, match="source"):
        decode_source(data)


@given(st.builds(Route, gateway=NAMES, tenant=NAMES, topic_filter=TEXT.filter(bool)))
def test_a_route_comes_back_from_its_key(route: Route) -> None:
    assert decode_route_key(route_key(route)) == route


@pytest.mark.parametrize("key", [b"", b"gateway-1", b"gateway-1/default"])
def test_a_route_key_of_another_form_is_refused(key: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode_route_key(key)


@given(
    st.builds(
        Barrier,
        gateway=NAMES,
        incarnation=NAMES,
        round=st.integers(0, 2**40),
        routes_offset=st.integers(-1, 2**62),
        route_number=st.integers(0, 2**62),
    )
)
def test_a_barrier_comes_back_from_its_key_and_looks_like_no_message(barrier: Barrier) -> None:
    key = barrier_key(barrier)
    assert decode_barrier_key(key) == barrier
    assert key.startswith(records.BARRIER_KEY_PREFIX)


@pytest.mark.parametrize(
    "key", [b"\0barrier/g", b"\0barrier/g/i/0/0", b"\0barrier/g/i/x/0/0", b"\0barrier/g/\xff/0/0/0"]
)
def test_a_barrier_key_of_another_form_is_refused(key: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode_barrier_key(key)


def test_a_gateway_has_a_delivery_topic_of_its_own() -> None:
    assert delivery_topic("gateway-1") == "mqlake.delivery.gateway-1"


def test_every_header_and_log_topic_is_in_the_document() -> None:
    document = DOCUMENT.read_text(encoding="utf-8")
    spelled = set(re.findall(r"`([^`\n]+)`", document))
    for name, value in vars(records).items():
        if name.startswith("HEADER_") or name in LOG_TOPICS:
            assert value in spelled, f"{name} = {value!r} is not in {DOCUMENT.name}"
    assert "mqlake.delivery.<gateway>" in spelled
    assert f"version {RECORD_VERSION}" in document


def a_message() -> Message:
    return Message(
        tenant="default",
        topic_name="a",
        payload=b"",
        qos=1,
        retain=False,
        message_id=bytes(16),
        client_id="c",
        received_at_ms=0,
        origin="local/gateway-1",
    )


def test_the_retain_flag_is_read_from_the_headers() -> None:
    for dup in (False, True):
        for retain in (False, True):
            mqtt = mqtt_header(5, 2, retain=retain, dup=dup)
            assert is_retained({HEADER_MQTT: mqtt}) is retain
    assert not is_retained({})
    assert not is_retained({HEADER_MQTT: b"\x01\x05"})
