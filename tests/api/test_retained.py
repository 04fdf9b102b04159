import re
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.messages.retained import RetainedTable, to_regex
from mqlake.errors import InvalidTopic
from mqlake.records.messages import INBOUND, decode_message
from mqlake.tables.catalogue import RETAINED
from mqlake.topics.matching import filter_matches
from mqlake.topics.names import validate_topic_filter
from tests.api.conftest import Api
from tests.ingest.gateway.lake.tables import append

LEVEL = st.text("a.$ (\\^#+-~&[", max_size=3)
TOPICS = st.lists(LEVEL.filter(lambda one: not set(one) & {"#", "+"}), min_size=1, max_size=4)
FILTERS = st.lists(st.sampled_from(["+", "#", "a", "$a", ""]) | LEVEL, min_size=1, max_size=4)


def put(data_dir: Path, topic: str, **more: Any) -> None:
    row = {
        "tenant": "default",
        "topic": topic,
        "payload": b"1",
        "qos": 1,
        "id": "ab" * 16,
        "client_id": "c1",
        "protocol_level": 4,
        "origin": "local/gateway-1",
        "ts": 1_700_000_000_123_000,
        "log_partition": 2,
        "log_offset": 7,
    }
    append(data_dir, RETAINED, [{**row, **more}])


def topics(page: Any) -> list[str]:
    return [item["topic_name"] for item in page["items"]]


def test_a_retained_message_is_shown_whole(api: Api) -> None:
    put(
        api.data_dir,
        "a/b",
        payload=b"\xff" * 2000,
        username="alice",
        protocol_level=5,
        properties='{"content_type":"image/png"}',
        expires_at=4_000_000_000_000_000,
    )
    shown = api.get("/retained/a/b")
    assert shown.pop("payload") is None
    assert b64decode(shown.pop("payload_base64")) == b"\xff" * 2000
    assert shown == {
        "tenant": "default",
        "topic_name": "a/b",
        "payload_bytes": 2000,
        "qos": 1,
        "retain": True,
        "message_id": "ab" * 16,
        "client_id": "c1",
        "username": "alice",
        "protocol_version": "5.0",
        "properties": {"content_type": "image/png"},
        "origin": "local/gateway-1",
        "received_at": "2023-11-14T22:13:20.123000Z",
        "expires_at": "2096-10-02T07:06:40Z",
    }
    (item,) = api.get("/retained")["items"]
    assert item == {**shown, "payload": None, "payload_base64": None}
    (item,) = api.get("/retained", max_payload_bytes=2000)["items"]
    assert item["payload_base64"] is not None
    put(api.data_dir, "a/c", payload=b"warm")
    assert api.get("/retained/a/c")["payload"] == "warm"


def test_retained_messages_are_listed_a_page_at_a_time(api: Api) -> None:
    for topic in ("b", "a/1", "/", "a", "it's"):
        put(api.data_dir, topic)
    put(api.data_dir, "of/another", tenant="other")
    put(api.data_dir, "gone", expires_at=1_000_000)
    first = api.get("/retained", limit=3)
    assert topics(first) == ["/", "a", "a/1"]
    second = api.get("/retained", limit=3, cursor=first["next_cursor"])
    assert (topics(second), second["next_cursor"]) == (["b", "it's"], None)
    assert topics(api.get("/retained", topic_filter="a/#")) == ["a", "a/1"]
    assert topics(api.get("/retained", tenant="other")) == ["of/another"]
    assert api.get("/retained/it's")["topic_name"] == "it's"
    assert api.get("/retained//")["topic_name"] == "/"
    assert api.request("GET", "/retained/gone").status_code == 404


@pytest.mark.parametrize("topic_filter", ["a/#/b", "a+", "", "$share/g/a"])
def test_a_filter_that_is_none_is_refused(api: Api, topic_filter: str) -> None:
    answer = api.request("GET", "/retained", params={"topic_filter": topic_filter})
    assert answer.status_code == 422


@given(FILTERS, TOPICS)
def test_the_regular_expression_of_a_filter_matches_as_it_does(
    filter_levels: list[str], topic_levels: list[str]
) -> None:
    topic_filter, topic = "/".join(filter_levels), "/".join(topic_levels)
    try:
        validate_topic_filter(topic_filter)
    except InvalidTopic:
        return
    if topic and not topic_filter.startswith("$share"):
        found = re.search(to_regex(topic_filter), topic)
        assert (found is not None) == filter_matches(topic_filter, topic)


def test_the_table_takes_the_regular_expressions(tmp_path: Path) -> None:
    """Its dialect is not Python's."""
    names = ["a", "a/b", "$x/y", "a b/(c)", "-~&\\^[]{}|?*", "/", "ü/\n", "a.c", "abc"]
    for name in names:
        put(tmp_path, name)
    table = RetainedTable(tmp_path / "tables" / "retained")
    for topic_filter in [*names, "#", "+", "+/+", "a/#", "+/#", "/+", "a/+", "$x/#", "ü/+"]:
        rows = table.page("default", topic_filter, "", 100, max_payload_bytes=0)
        expected = sorted(name for name in names if filter_matches(topic_filter, name))
        assert [row["topic"] for row in rows] == expected, topic_filter


def test_without_a_table_the_answer_says_so(api: Api) -> None:
    answer = api.request("GET", "/retained")
    assert answer.status_code == 503
    assert "there is no table" in answer.json()["detail"]


def test_a_table_that_is_damaged_is_a_problem(api: Api) -> None:
    put(api.data_dir, "a")
    for file in (api.data_dir / "tables" / "retained").glob("*.parquet"):
        file.write_bytes(b"")
    answer = api.request("GET", "/retained")
    assert answer.status_code == 503
    assert "cannot be read" in answer.json()["detail"]


def test_deleting_publishes_an_empty_retained_message(api: Api) -> None:
    answer = api.request("DELETE", "/retained//a/b c")
    assert answer.status_code == 202
    assert answer.json() == {"topic_name": "/a/b c"}
    (record,) = api.log.records
    assert (record.log_topic, record.key, record.value) == (INBOUND, b"default//a/b c", b"")
    message = decode_message(record.key, record.value, record.headers, 0)
    assert message.retain
    assert message.qos == 1
    assert message.origin == "local/api"
    assert message.client_id == "mqlake-api"
    assert len(message.message_id) == 16


@pytest.mark.parametrize("topic", ["a/%23", "%2B", "$SYS/broker/uptime", ""])
def test_what_is_no_topic_of_clients_is_not_published(api: Api, topic: str) -> None:
    answer = api.request("DELETE", f"/retained/{topic}")
    assert answer.status_code == 422
    assert api.log.records == []
