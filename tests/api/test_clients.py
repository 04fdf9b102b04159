import json
from typing import Any

import pytest

from mqlake.records.messages import CONTROL_KEY_PREFIX, delivery_topic
from tests.api.conftest import Api, progress, session, subscription

WILL = {
    "topic": "will",
    "payload": "",
    "qos": 1,
    "retain": True,
    "properties": {},
    "delay": 10,
}


def names(page: Any) -> list[str]:
    return [item["client_id"] for item in page["items"]]


def test_a_client_has_all_attributes_of_its_session(api: Api) -> None:
    api.put_session(
        "c/1",
        username="alice",
        connected=False,
        disconnected_at=1_600_000_100_000,
        reason="silent for 90.0 s",
        expiry=50,
        subscriptions=[subscription("a/#", qos=2, no_local=True, identifier=7)],
        will=WILL,
        will_at=1_600_000_110_000,
    )
    sent = [[1, 1, 0, 4, 0], [2, 2, 1, 8, 1]]
    api.put(
        "p/default/c/1",
        progress(cursor=[5, 9], out=sent, storing=[7], storing_from=[1, 2], **{"in": [3]}),
    )
    assert api.get("/clients/c%2F1") == {
        "session_id": "00000000000000ab",
        "tenant": "default",
        "client_id": "c/1",
        "username": "alice",
        "protocol_version": "5.0",
        "keep_alive": 60,
        "connected": False,
        "connected_at": "2020-09-13T12:26:40Z",
        "disconnected_at": "2020-09-13T12:28:20Z",
        "disconnect_reason": "silent for 90.0 s",
        "clean_start": False,
        "session_expiry_interval": 50,
        "gateway": "gateway-1",
        "subscription_count": 1,
        "expires_at": "2020-09-13T12:29:10Z",
        "will": {
            "topic_name": "will",
            "qos": 1,
            "retain": True,
            "will_delay_interval": 10,
            "due_at": "2020-09-13T12:28:30Z",
        },
        "subscriptions": [
            {
                "topic_filter": "a/#",
                "qos": 2,
                "no_local": True,
                "retain_as_published": False,
                "retain_handling": 0,
                "identifier": 7,
            }
        ],
        "in_flight_out": [
            {"packet_id": 1, "qos": 1, "released": False, "partition": 0, "offset": 4},
            {"packet_id": 2, "qos": 2, "released": True, "partition": 1, "offset": 8},
        ],
        "in_flight_in": [3, 7],
        "qos2_unacknowledged": 3,
        "cursor": [5, 9],
        "catching_up": False,
    }


@pytest.mark.parametrize("fell_behind", [True, False])
def test_a_slow_client_is_seen_to_catch_up(api: Api, fell_behind: bool) -> None:
    api.put_session("c")
    history = {"filters": ["a"], "from": 0, "cursor": [3, 4], "fell_behind": fell_behind}
    api.put("p/default/c", progress(history=[history]))
    assert api.get("/clients/c")["catching_up"] is fell_behind


def test_a_settled_session_is_as_far_as_its_gateway(api: Api) -> None:
    api.put_session("c")
    api.put("p/default/c", progress(cursor=[5, 9], settled=True))
    assert api.get("/clients/c")["cursor"] == [5, 9]
    api.put("g/gateway-1", {"v": 1, "incarnation": "i1", "marks": [7, 3]})
    assert api.get("/clients/c")["cursor"] == [8, 9]
    api.put("g/gateway-1", {"v": 1, "incarnation": "i2", "marks": [7, 3]})
    assert api.get("/clients/c")["cursor"] == [5, 9]


def test_progress_of_an_earlier_session_is_not_shown(api: Api) -> None:
    api.put_session("c")
    api.put("p/default/c", progress(id="other", out=[[1, 1, 0, 4, 0]]))
    client = api.get("/clients/c")
    assert (client["cursor"], client["in_flight_out"]) == (None, [])


def test_a_session_that_ended_is_unknown(api: Api) -> None:
    api.put_session("c", subscriptions=[subscription("a")])
    api.put("s/default/c", None)
    answer = api.request("GET", "/clients/c")
    assert answer.status_code == 404
    assert answer.json()["detail"] == "no session of client 'c' is stored"
    assert names(api.get("/clients")) == names(api.get("/subscriptions")) == []


def test_clients_are_listed_a_page_at_a_time(api: Api) -> None:
    for number in range(7):
        api.put_session(f"c{number}", connected=number % 2 == 0)
    api.put_session("other", tenant="other")
    pages = []
    cursor: dict[str, str] = {}
    while True:
        page = api.get("/clients", limit=3, **cursor)
        pages.append(names(page))
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
        api.put_session("c00")  # what comes meanwhile shifts nothing
    assert pages == [["c0", "c1", "c2"], ["c3", "c4", "c5"], ["c6"]]
    assert names(api.get("/clients", tenant="other")) == ["other"]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"connected": True}, ["a1", "b1"]),
        ({"connected": False}, ["a2"]),
        ({"username": "alice"}, ["a1", "a2"]),
        ({"gateway": "gateway-2"}, ["b1"]),
        ({"client_id_prefix": "a"}, ["a1", "a2"]),
        ({"client_id_prefix": "a", "connected": True, "username": "alice"}, ["a1"]),
        ({"client_id_prefix": "%"}, []),
    ],
)
def test_clients_are_filtered(api: Api, parameters: dict[str, Any], expected: list[str]) -> None:
    api.put_session("a1", username="alice")
    api.put_session("a2", username="alice", connected=False)
    api.put_session("b1", gateway="gateway-2")
    assert names(api.get("/clients", **parameters)) == expected


@pytest.mark.parametrize("cursor", ["", "x", "bnVsbA", "WyJhIiwiYiJd", "é"])
def test_a_cursor_that_is_not_ours_is_refused(api: Api, cursor: str) -> None:
    answer = api.request("GET", "/clients", params={"cursor": cursor})
    assert answer.status_code == 422


def test_subscriptions_follow_their_sessions(api: Api) -> None:
    api.put_session("c1", subscriptions=[subscription("a"), subscription("b")])
    api.put_session("c2", subscriptions=[subscription("a", qos=0)])
    assert [
        (one["topic_filter"], one["client_id"], one["qos"])
        for one in api.get("/subscriptions")["items"]
    ] == [("a", "c1", 1), ("a", "c2", 0), ("b", "c1", 1)]
    api.put_session("c1", subscriptions=[subscription("b", qos=2)])
    assert names(api.get("/subscriptions", topic_filter="a")) == ["c2"]
    found = api.get("/clients/c1/subscriptions")
    assert [(one["topic_filter"], one["qos"]) for one in found["items"]] == [("b", 2)]
    first = api.get("/subscriptions", limit=1)
    second = api.get("/subscriptions", limit=1, cursor=first["next_cursor"])
    assert (names(first), names(second), second["next_cursor"]) == (["c2"], ["c1"], None)


def test_subscriptions_read_at_the_start_are_as_those_that_come(api: Api) -> None:
    """The first are put in at once, by SQL."""
    cache = api.services.gateways.sessions
    values = [
        ("c1", [subscription("a"), subscription("a")]),
        ("c2", []),
        ("c3", [subscription("b")]),
    ]
    with cache.taking() as writer:
        for client_id, subscriptions in values:
            value = json.dumps(session(client_id, subscriptions=subscriptions)).encode()
            writer.apply([(f"s/default/{client_id}".encode(), value)])
        writer.complete()
        before = api.get("/subscriptions")["items"]
        for client_id, subscriptions in values:
            writer.apply([(f"s/default/{client_id}".encode(), None)])
            value = json.dumps(session(client_id, subscriptions=subscriptions)).encode()
            writer.apply([(f"s/default/{client_id}".encode(), value)])
        assert api.get("/subscriptions")["items"] == before
        assert [(one["topic_filter"], one["client_id"]) for one in before] == [
            ("a", "c1"),
            ("b", "c3"),
        ]


@pytest.mark.parametrize(
    "value",
    [b"", b"[]", b"{}", b'{"v":2}', json.dumps(session("c", v=5)).encode(), b"\xff"]
    + [json.dumps(session("c", **{name: 7})).encode() for name in ("gateway", "subscriptions")],
)
def test_a_record_of_another_form_changes_nothing(api: Api, value: bytes) -> None:
    api.put_session("c", username="alice")
    assert len(api.writer.apply([(b"s/default/c", value)])) == 1
    assert api.get("/clients/c")["username"] == "alice"


def test_claims_are_not_sessions(api: Api) -> None:
    assert api.writer.apply([(b"c/default/c", b"{}"), (b"\xff", b"{}")]) != []
    assert names(api.get("/clients")) == []


def test_nothing_is_shown_before_all_is_read(api: Api) -> None:
    api.services.gateways.sessions.is_complete = False
    for path in ("/clients", "/clients/c", "/clients/c/subscriptions", "/subscriptions"):
        answer = api.request("GET", path)
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"


def test_everything_needs_the_token(api: Api) -> None:
    client = api.client
    paths = client.get("/api/v1/openapi.json").json()["paths"]
    for path, methods in paths.items():
        if path in {"/api/v1/live", "/api/v1/ready"} or path.startswith("/api/v1/login"):
            continue
        api.clock.advance(60)  # else so many failures would be too many
        for method in methods:
            assert client.request(method.upper(), path).status_code == 401, path


def test_deleting_asks_every_gateway_that_is_alive(api: Api) -> None:
    api.hear("gateway-3")
    api.clock.advance(4)
    api.hear("gateway-1")
    api.hear("gateway-2")
    answer = api.request("DELETE", "/clients/c/1", params={"end_session": False})
    assert answer.status_code == 202
    assert answer.json() == {"client_id": "c/1", "gateways": ["gateway-1", "gateway-2"]}
    assert [record.log_topic for record in api.log.records] == [
        delivery_topic("gateway-1"),
        delivery_topic("gateway-2"),
    ]
    record = api.log.records[0]
    assert record.key == CONTROL_KEY_PREFIX + b"disconnect"
    assert json.loads(record.value or b"") == {
        "tenant": "default",
        "client_id": "c/1",
        "end_session": False,
    }


def test_nobody_can_be_asked_to_disconnect_where_no_gateway_is(api: Api) -> None:
    answer = api.request("DELETE", "/clients/c")
    assert (answer.status_code, answer.json()["detail"]) == (503, "no gateway is alive")
