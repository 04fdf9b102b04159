"""Subscriptions that have records of their own are found as those of the session's record are."""

from typing import Any

import pytest

from tests.api.conftest import Api

SESSION_ID = "00000000000000ab"
OTHER_ID = "00000000000000cd"


def subscription(topic_filter: str, qos: int = 1) -> dict[str, Any]:
    return {
        "filter": topic_filter,
        "qos": qos,
        "no_local": False,
        "retain_as_published": False,
        "retain_handling": 0,
        "identifier": None,
        "starts": None,
    }


def put(api: Api, topic_filter: str, qos: int = 1, session_id: str = SESSION_ID) -> None:
    value = {"v": 2, "id": session_id, **subscription(topic_filter, qos)}
    api.put(f"u/default/c\0{topic_filter}", value)


def found(api: Api, *, in_both: int = 0) -> dict[str, int]:
    """Return topic filter -> QoS, as all who tell of subscriptions have it."""
    client = api.get("/clients/c")
    listed = {one["topic_filter"]: one["qos"] for one in api.get("/subscriptions")["items"]}
    said = {one["topic_filter"]: one["qos"] for one in client["subscriptions"]}
    (summary,) = api.get("/clients")["items"]
    assert said == listed
    assert client["subscription_count"] == len(said)
    assert summary["subscription_count"] == len(said) + in_both
    return said


@pytest.mark.parametrize("comes_first", ["session", "subscription"])
def test_a_subscription_with_its_own_record_is_the_sessions(api: Api, comes_first: str) -> None:
    if comes_first == "subscription":
        put(api, "b")
    api.put_session("c", subscriptions=[subscription("a")])
    put(api, "b")
    assert found(api) == {"a": 1, "b": 1}
    put(api, "b", qos=2)
    assert found(api) == {"a": 1, "b": 2}
    api.put("u/default/c\0b", None)
    assert found(api) == {"a": 1}


def test_a_record_of_another_session_counts_for_nothing(api: Api) -> None:
    api.put_session("c", subscriptions=[subscription("a")])
    put(api, "b")
    api.put_session("c", id=OTHER_ID, subscriptions=[])
    assert found(api) == {}
    put(api, "d", session_id=OTHER_ID)
    put(api, "e")
    assert found(api) == {"d": 1}
    api.put("s/default/c", None)
    assert api.get("/subscriptions")["items"] == []


def test_a_subscription_moves_out_of_its_session(api: Api) -> None:
    api.put_session("c", subscriptions=[subscription("a"), subscription("b")])
    put(api, "b")
    assert found(api, in_both=1) == {"a": 1, "b": 1}
    api.put_session("c", subscriptions=[subscription("a")])
    assert found(api) == {"a": 1, "b": 1}


def test_what_stands_in_the_session_counts_before_its_own_record(api: Api) -> None:
    put(api, "a", qos=0)
    api.put_session("c", subscriptions=[subscription("a", 2)])
    put(api, "a", qos=0)
    assert found(api, in_both=1) == {"a": 2}
    api.put("u/default/c\0a", None)
    assert found(api) == {"a": 2}
