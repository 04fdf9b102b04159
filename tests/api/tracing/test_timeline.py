"""Who had a subscription, and whose session was there, when a message came."""

from typing import Any

import pytest

from api.tracing.timeline import Timeline

AT = 1_000_000
TOPIC = "plant/1/temp"
NEVER = 0xFFFF_FFFF


def event(name: str, at_ms: int, client_id: str = "a", **fields: Any) -> dict[str, Any]:
    return {
        "event": name,
        "ts": at_ms,
        "tenant": "default",
        "client_id": client_id,
        "gateway": "gateway-1",
        **fields,
    }


def connected(at_ms: int, expiry: int = 0, *, present: bool = False) -> dict[str, Any]:
    return event("client.connected", at_ms, expiry=expiry, session_present=present)


def subscribed(at_ms: int, topic_filter: str = "plant/+/temp") -> dict[str, Any]:
    return event("session.subscribed", at_ms, filter=topic_filter, qos=1)


def left(at_ms: int) -> dict[str, Any]:
    return event("client.disconnected", at_ms, reason="gone")


def unsubscribed(at_ms: int) -> dict[str, Any]:
    return event("session.unsubscribed", at_ms, filter="plant/+/temp")


@pytest.mark.parametrize(
    ("events", "presence"),
    [
        ([connected(10), subscribed(20)], "connected"),
        ([subscribed(20)], "connected"),
        ([connected(10), subscribed(20), left(30)], "session_ended"),
        ([connected(10, NEVER), subscribed(20), left(30)], "away"),
        ([connected(10, 2_000), subscribed(20), left(30)], "away"),
        ([connected(10, 600), subscribed(20), left(30)], "session_expired"),
        ([connected(10, 600), subscribed(20), left(30), connected(40, 600)], "session_ended"),
        (
            [connected(10, 600), subscribed(20), left(30), connected(40, 600, present=True)],
            "connected",
        ),
        ([connected(10), subscribed(20), left(AT + 5)], "connected"),
    ],
)
def test_a_client_is_there_or_its_session_is_or_neither(
    events: list[dict[str, Any]], presence: str
) -> None:
    timeline = Timeline(TOPIC, AT)
    for offset, one in enumerate(events):
        timeline.take(offset, one)
    ((client_id, life),) = timeline.clients()
    held = life.held["plant/+/temp"]
    assert (client_id, held.is_held, held.qos) == ("a", True, 1)
    assert life.presence(held, AT) == presence


def test_what_was_unsubscribed_or_subscribed_later_is_not_held() -> None:
    timeline = Timeline(TOPIC, AT)
    for offset, one in enumerate([subscribed(10), unsubscribed(20), subscribed(AT + 7)]):
        timeline.take(offset, one)
    ((_, life),) = timeline.clients()
    held = life.held["plant/+/temp"]
    assert not held.is_held
    assert held.later_ms == AT + 7
    timeline.take(9, subscribed(30))
    assert held.is_held


def test_only_filters_that_match_count_unless_a_client_is_asked_for() -> None:
    others = [subscribed(10, "other"), subscribed(20, "$share/g/plant/#")]
    timeline = Timeline(TOPIC, AT)
    asked = Timeline(TOPIC, AT, "a")
    for offset, one in enumerate(others):
        timeline.take(offset, one)
        asked.take(offset, one)
        asked.take(offset, {**one, "client_id": "b"})
    assert [list(life.held) for _, life in timeline.clients()] == [["$share/g/plant/#"]]
    assert [(one, list(life.held)) for one, life in asked.clients()] == [
        ("a", ["other", "$share/g/plant/#"])
    ]
