"""A key for some topics: it may have what is of them, and asks for nothing else."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from api.replay.order import ReplayOrder
from api.replay.rows import MessageLimits, RowError, read_row
from api.sql.checking import check
from api.sql.errors import QueryError
from tests.api.conftest import Api, operations
from tests.api.live.records import message
from tests.api.live.test_routes import events_of, feed_of, give, short_api
from tests.api.live.websocket import Socket
from tests.api.test_access import PASSWORD, bearer, make_key, session_of
from tests.api.test_retained import put, topics

__all__ = ["short_api"]  # a fixture of others

OBEYING = {
    *("GET /session", "GET /session/operations", "POST /logout"),
    *("POST /publish", "POST /publish/bulk", "GET /topics", "GET /live/messages", "POST /sql"),
    "POST /sql/start",
    *("GET /retained", "GET /retained/{topic}", "DELETE /retained/{topic}"),
    *("GET /messages/{id}/trace", "POST /replay", "POST /session/password"),
    *("GET /jobs", "GET /jobs/{id}", "DELETE /jobs/{id}"),
    *("GET /rules", "POST /rules", "POST /rules/validate", "POST /rule_test"),
    *("GET /rules/{id}", "PUT /rules/{id}", "DELETE /rules/{id}", "GET /rules/{id}/explain"),
    *("GET /rules/{id}/metrics", "PUT /rules/{id}/metrics/reset", "GET /rule_metrics"),
    *("GET /rules/{id}/versions", "GET /rules/{id}/versions/{version}"),
    "GET /rules/{id}/versions/{version}/diff/{other}",
    "POST /rules/{id}/versions/{version}/rollback",
    *("GET /rule_events", "GET /rule_actions"),
}
FILTERS = ["plant/+/temperature", "lab/#"]


def key_for(api: Api, *filters: str, role: str = "editor") -> dict[str, str]:
    return bearer(make_key(api, role, topic_filters=list(filters or FILTERS))["key"])


def test_each_operation_obeys_or_refuses(api: Api) -> None:
    """A new operation refuses, until it says that it obeys and stands above."""
    key = key_for(api)
    for method, path, operation in operations(api):
        if "security" not in operation:
            continue  # for everybody
        name = f"{method} {path}"
        assert operation.get("x-topics", False) == (name in OBEYING), name
        if name not in OBEYING:
            answer = api.request(method, path.replace("{", "").replace("}", ""), key)
            assert answer.status_code == 403, name


@pytest.mark.parametrize(
    ("topic", "status"),
    [
        ("plant/1/temperature", 200),
        ("lab", 200),
        ("lab/a/b", 200),
        ("plant/1/pressure", 403),
        ("plant/1/2/temperature", 403),
        ("labs", 403),
        ("$lab/a", 403),
    ],
)
def test_messages_go_to_ones_own_topics(api: Api, topic: str, status: int) -> None:
    key = key_for(api)
    before = len(api.log.records)
    one = {"topic_name": topic, "payload": "x"}
    assert api.request("POST", "/publish", key, json=one).status_code == status
    both = {"messages": [{"topic_name": "lab/1", "payload": "x"}, one]}
    assert api.request("POST", "/publish/bulk", key, json=both).status_code == status
    assert len(api.log.records) - before == (3 if status == 200 else 0)


def test_retained_messages_are_shown_and_deleted_of_ones_own_topics(api: Api) -> None:
    key = key_for(api)
    for topic in ("lab/1", "plant/1/temperature", "plant/1/pressure"):
        put(api.data_dir, topic)
    for topic_filter in (None, "#", "plant/#", "+/1", "plant/+/+", "plant/1/pressure"):
        parameters = {} if topic_filter is None else {"topic_filter": topic_filter}
        assert api.request("GET", "/retained", key, params=parameters).status_code == 403
    found = api.request("GET", "/retained", key, params={"topic_filter": "lab/#"})
    assert topics(found.json()) == ["lab/1"]
    assert api.request("GET", "/retained/plant/1/temperature", key).status_code == 200
    for method in ("GET", "DELETE"):
        for topic in ("plant/1/pressure", "nowhere"):
            assert api.request(method, f"/retained/{topic}", key).status_code == 403
    assert api.request("DELETE", "/retained/lab/1", key).status_code == 202


def test_topics_are_listed_that_are_ones_own(api: Api) -> None:
    key = key_for(api)
    feed_of(api).receive([message("lab/1"), message("other")])
    assert api.request("GET", "/topics", key).status_code == 403
    found = api.request("GET", "/topics", key, params={"topic_filter": "lab/#"}).json()
    assert [one["topic_name"] for one in found["items"]] == ["lab/1"]


def test_live_messages_are_those_of_ones_own_topics(short_api: Api) -> None:
    key = key_for(short_api, role="viewer")
    for filters in (["#"], ["lab/#", "plant/#"], ["+/1"], ["$SYS/#"]):
        answer = short_api.request("GET", "/live/messages", key, params={"topic_filter": filters})
        assert answer.status_code == 403
    thread = give(short_api, message("lab/1"), message("other"))
    answer = short_api.request("GET", "/live/messages", key, params={"topic_filter": "lab/+"})
    thread.join()
    shown = [one["topic_name"] for name, one in events_of(answer.text) if name == "message"]
    assert shown == ["lab/1"]
    assert not feed_of(short_api).tenants


def test_a_websocket_obeys_too(api: Api) -> None:
    key = key_for(api)

    async def talk() -> None:
        async with Socket(api.client.app, key) as socket:

            async def ask(**asked: Any) -> Any:
                await socket.say(**asked)
                (told,) = await socket.hear()
                return told["event"], told["data"].get("status")

            for asked in (
                {"stream": "outputs"},
                {"stream": "metrics"},
                {"stream": "messages", "topic_filters": ["lab/#", "#"]},
            ):
                assert await ask(subscribe="a", **asked) == ("error", 403)
            mine = {"stream": "messages", "topic_filters": ["lab/#"]}
            assert await ask(subscribe="a", **mine) == ("subscribed", None)

    asyncio.run(talk())


def test_a_session_of_the_key_has_its_rights(api: Api) -> None:
    made = make_key(api, "editor", topic_filters=FILTERS)
    headers, _ = session_of(api, token=made["key"])
    for topic, status in (("lab/1", 200), ("other", 403)):
        one = {"topic_name": topic, "payload": "x"}
        assert api.request("POST", "/publish", headers, json=one).status_code == status
    assert api.request("GET", "/clients", headers).status_code == 403
    assert api.get("/keys")["items"][0]["topic_filters"] == FILTERS


def test_a_key_for_no_topics_has_none(api: Api) -> None:
    key = bearer(make_key(api, "editor", topic_filters=[])["key"])
    one = {"topic_name": "a", "payload": "x"}
    assert api.request("POST", "/publish", key, json=one).status_code == 403
    checked = check("SELECT 1 FROM messages", "t", topic_filters=[])
    assert checked.given["messages"].rows.endswith("WHERE tenant = 't' AND (false)")


@pytest.mark.parametrize(
    "filters", ["a", ["a/#/b"], ["$share/g/a"], [""], ["a\0"], ["a"] * 101, [1]]
)
def test_what_is_no_filter_is_refused(api: Api, filters: Any) -> None:
    body = {"role": "viewer", "description": "x", "topic_filters": filters}
    assert api.request("POST", "/keys", json=body).status_code == 422


def test_an_administrator_has_all_topics(api: Api) -> None:
    body = {"role": "admin", "description": "x", "topic_filters": ["a"]}
    assert api.request("POST", "/keys", json=body).status_code == 422


def test_queries_see_rows_of_ones_own_topics() -> None:
    hostile = "a') OR true OR ('"
    checked = check(
        "SELECT m.topic FROM messages m JOIN retained VERSION AS OF 3 r ON m.topic = r.topic",
        "t",
        topic_filters=["lab/#", hostile],
    )
    matches = "spark_catalog.default.topic_matches"
    lab = f"{matches}(`topic`, 'lab/#')"
    other = f"({matches}(`topic`, 'a\\') OR true OR (\\'') AND right(`topic`, 1) <> '#')"
    mine = f" WHERE tenant = 't' AND (false OR {lab} OR {other})"
    assert {name: rows.rows.endswith(mine) for name, rows in checked.given.items()} == {
        "messages": True,
        "retained": True,
    }
    events = check("SELECT * FROM events", "t", topic_filters=["lab/#"]).given["events"]
    assert events.rows.endswith(f"tenant = 't' AND (false OR {matches}(`filter`, 'lab/#'))")


def test_an_account_for_some_topics_has_them_alone(api: Api) -> None:
    body = {"name": "ann", "role": "editor", "password": PASSWORD, "topic_filters": FILTERS}
    assert api.request("POST", "/accounts", json=body).json()["topic_filters"] == FILTERS
    headers, said = session_of(api)
    assert said["topic_filters"] == FILTERS
    for topic, status in (("lab/1", 200), ("other", 403)):
        one = {"topic_name": topic, "payload": "x"}
        assert api.request("POST", "/publish", headers, json=one).status_code == status
    assert api.request("GET", "/clients", headers).status_code == 403
    changed = api.request("PUT", "/accounts/ann", json={"role": "viewer"}).json()
    assert (changed["role"], changed["topic_filters"]) == ("viewer", FILTERS)
    wrong = api.request("PUT", "/accounts/ann", json={"role": "admin"})
    assert (wrong.status_code, "has all topics" in wrong.json()["detail"]) == (422, True)
    api.request("PUT", "/accounts/ann", json={"topic_filters": ["other"]})
    found = api.request("GET", "/retained", headers, params={"topic_filter": "lab/#"})
    assert found.status_code == 403
    api.request("PUT", "/accounts/ann", json={"topic_filters": None, "role": "admin"})
    assert api.request("GET", "/keys", headers).status_code == 200
    assert api.request("POST", "/accounts", json={**body, "role": "admin"}).status_code == 422


def test_live_streams_end_when_the_topics_of_an_account_change(api: Api) -> None:
    body = {"name": "ann", "role": "viewer", "password": PASSWORD}
    api.request("POST", "/accounts", json=body)
    headers, _ = session_of(api)
    callers = api.services.access.authenticator.callers
    caller = callers.by_session(headers["Cookie"].partition("=")[2])
    assert caller is not None
    assert callers.is_current(caller)
    api.request("PUT", "/accounts/ann", json={"topic_filters": ["a"]})
    assert not callers.is_current(caller)


def test_a_replay_reads_and_sends_ones_own_topics(api: Api, tmp_path: Path) -> None:
    key = key_for(api)
    asked = {"query": "SELECT * FROM messages"}
    started = api.request("POST", "/replay", key, json=asked)
    assert started.status_code == 202, started.text
    job = started.json()["id"]
    kept = api.services.runs.jobs.get(job)
    assert kept is not None
    order = ReplayOrder.from_request("default", kept.request or {})
    assert "topic_matches(`topic`, 'lab/#')" in order.query.given["messages"].rows
    refused = api.request("POST", "/replay", key, json={"query": "SELECT * FROM subscriptions"})
    assert refused.status_code == 422
    row = {
        "topic": "other",
        "payload_bytes": b"1",
        "qos": 0,
        "retain": False,
        "properties": None,
        "client_id": "a",
        "id": "b",
        "ts": datetime.now(UTC),
        "log_partition": 0,
        "log_offset": 1,
    }
    most = MessageLimits(100, 128)
    with pytest.raises(RowError, match="has no right to 'other'"):
        read_row(row, order, most)
    elsewhere = replace(order, prefix="copy/")
    with pytest.raises(RowError, match="has no right to 'copy/lab/1'"):
        read_row({**row, "topic": "lab/1"}, elsewhere, most)
    assert read_row({**row, "topic": "lab/1"}, order, most).topic_name == "lab/1"

    stranger = key_for(api)
    assert [one["id"] for one in api.request("GET", "/jobs", key).json()["items"]] == [job]
    assert api.request("GET", "/jobs", stranger).json()["items"] == []
    for method in ("GET", "DELETE"):
        assert api.request(method, f"/jobs/{job}", stranger).status_code == 404
    assert api.request("GET", f"/jobs/{job}", key).status_code == 200
    assert api.request("DELETE", f"/jobs/{job}", key).status_code == 202


@pytest.mark.parametrize(
    "name", ["dead_letters", "late", "sessions", "subscriptions", "rules", "rule_x", "reference_x"]
)
def test_queries_name_no_other_table(name: str) -> None:
    with pytest.raises(QueryError, match="one may query messages, retained, drops, events"):
        check(f"SELECT * FROM messages, {name}", "t", topic_filters=["#"])
