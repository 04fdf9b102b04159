"""Publishing: the checks of an MQTT PUBLISH, and the record that comes of it."""

import json
from base64 import b64encode
from typing import Any

import pytest

from api.routes.messages.publish import MAX_USER_PROPERTIES as MOST_OF_THE_API
from ingest.protocol.properties import MAX_USER_PROPERTIES
from mqlake.records.messages import INBOUND, Message, decode_message
from tests.api.conftest import AUTHORIZED, Api
from tests.api.test_access import bearer, code_of, make_key

JSON = {"Content-Type": "application/json"}


def publish(api: Api, **body: Any) -> Any:
    # Not by the client's own means, which cannot write half a surrogate pair.
    content = json.dumps({"topic_name": "a/b", **body})
    return api.request("POST", "/publish", {**AUTHORIZED, **JSON}, content=content)


def published(api: Api) -> Message:
    record = api.log.records[-1]
    assert record.log_topic == INBOUND
    return decode_message(record.key, record.value, record.headers, 0)


def test_a_published_message_is_a_record_of_the_log(api: Api) -> None:
    answer = publish(api, payload="21.5", qos=1, retain=True)
    assert answer.status_code == 200
    message = published(api)
    assert answer.json() == {
        "topic_name": "a/b",
        "message_id": message.message_id.hex(),
        "partition": 3,
        "offset": 0,
    }
    assert (message.tenant, message.topic_name, message.payload) == ("default", "a/b", b"21.5")
    assert (message.qos, message.retain, message.protocol_level) == (1, True, 5)
    assert (message.client_id, message.username) == ("mqlake-api", "api-token")
    assert message.origin == "local/api"


@pytest.mark.parametrize(
    ("body", "payload"),
    [
        ({}, b""),
        ({"payload": "é"}, "é".encode()),
        (
            {"payload": {"celsius": 21.5, "of": ["é", None]}},
            '{"celsius":21.5,"of":["é",null]}'.encode(),
        ),
        ({"payload": 7}, b"7"),
        ({"payload": False}, b"false"),
        ({"payload_base64": b64encode(b"\xff\x00").decode()}, b"\xff\x00"),
    ],
)
def test_payloads_are_text_json_or_bytes(api: Api, body: dict[str, Any], payload: bytes) -> None:
    assert publish(api, **body).status_code == 200
    assert published(api).payload == payload


def test_properties_are_those_of_the_message(api: Api) -> None:
    properties = {
        "payload_format_indicator": 1,
        "message_expiry_interval": 60,
        "content_type": "text/plain",
        "response_topic": "answers/1",
        "correlation_data": b64encode(b"\x00\x01").decode(),
        "user_property": [["unit", "°C"], ["unit", "K"]],
    }
    assert publish(api, payload="x", properties=properties).status_code == 200
    assert published(api).properties == {
        **properties,
        "correlation_data": b"\x00\x01",
        "user_property": [("unit", "°C"), ("unit", "K")],
    }


@pytest.mark.parametrize(
    "body",
    [
        {"topic_name": ""},
        {"topic_name": "a/+"},
        {"topic_name": "a/#"},
        {"topic_name": "a\0b"},
        {"topic_name": "x" * 65_536},
        {"topic_name": "€" * 22_000},
        {"topic_name": "$SYS/broker/uptime"},
        {"topic_name": "a/\ud800"},
        {"payload": "\ud800"},
        {"payload": ["\ud800"]},
        {"qos": 3},
        {"payload": "x", "payload_base64": "eA=="},
        {"payload_base64": "?"},
        {"unknown": 1},
        {"properties": {"topic_alias": 1}},
        {"properties": {"response_topic": "a/#"}},
        {"properties": {"content_type": "a\0"}},
        {"properties": {"message_expiry_interval": -1}},
        {"properties": {"user_property": [["a"]]}},
        {"properties": {"user_property": [["a", "\ud800"]]}},
        {"payload_base64": "/w==", "properties": {"payload_format_indicator": 1}},
    ],
)
def test_what_mqtt_forbids_is_refused(api: Api, body: dict[str, Any]) -> None:
    assert code_of(publish(api, **body)) == (422, "invalid_request")
    assert api.log.records == []


@pytest.mark.parametrize("tenant", ["", "a/b", "a\0"])
def test_no_message_gets_into_another_tenant(api: Api, tenant: str) -> None:
    answer = api.request("POST", "/publish", json={"topic_name": "a"}, params={"tenant": tenant})
    assert code_of(answer) == (422, "invalid_request")


def test_a_large_payload_is_refused(api: Api) -> None:
    assert code_of(publish(api, payload="x" * (1024 * 1024 + 1))) == (413, "body_too_large")


def test_a_topic_with_more_levels_than_gateways_take_is_refused(api: Api) -> None:
    assert publish(api, topic_name="/".join(["a"] * 128)).status_code == 200
    answer = publish(api, topic_name="/".join(["a"] * 129))
    assert answer.status_code == 422
    assert "has 129 levels, expected at most 128" in answer.json()["detail"]
    assert len(api.log.records) == 1


def test_a_viewer_does_not_publish(api: Api) -> None:
    key = make_key(api)["key"]
    answer = api.request("POST", "/publish", bearer(key), json={"topic_name": "a"})
    assert code_of(answer) == (403, "forbidden")


def test_what_the_log_does_not_take_is_told(api: Api) -> None:
    assert code_of(publish(api, payload="refuse")) == (503, "unavailable")
    assert code_of(publish(api, payload="lose")) == (503, "outcome_unknown")


def test_many_are_published_in_their_order(api: Api) -> None:
    messages = [{"topic_name": f"a/{number}", "payload": number} for number in range(3)]
    answer = api.request("POST", "/publish/bulk", json={"messages": messages})
    assert answer.status_code == 200
    found = answer.json()
    assert found["failed"] == 0
    assert [one["offset"] for one in found["items"]] == [0, 1, 2]
    assert [one.value for one in api.log.records] == [b"0", b"1", b"2"]


def test_of_many_each_says_what_became_of_it(api: Api) -> None:
    messages = [{"topic_name": "a", "payload": payload} for payload in ("1", "refuse", "2")]
    answer = api.request("POST", "/publish/bulk", json={"messages": messages})
    assert answer.status_code == 207
    assert answer.json()["failed"] == 1
    assert [one["error"] for one in answer.json()["items"]] == [None, "the log refuses", None]


def test_of_many_none_is_published_when_one_is_wrong(api: Api) -> None:
    messages = [{"topic_name": "a"}, {"topic_name": "a/#"}]
    answer = api.request("POST", "/publish/bulk", json={"messages": messages})
    assert code_of(answer) == (422, "invalid_request")
    assert api.log.records == []


def test_as_many_user_properties_are_taken_as_a_client_may_have() -> None:
    assert MOST_OF_THE_API == MAX_USER_PROPERTIES
