"""What feeds make of records; reading them from a log is tested on a running system."""

from functools import partial
from typing import Any

from api.live.messages import MessageFeed, message_event
from api.live.outputs import OutputFeed, output_event
from api.live.stream import LiveStream, Room
from api.live.topics import MAX_KEPT_BYTES, RecentTopics
from mqlake.records.outputs import Output, Position, output_headers, rule_record_key
from tests.api.live.records import FakeRecord, message

NOWHERE = "127.0.0.1:1"


def stream_of(woken: list[Any] | None = None, max_payload_bytes: int = 100) -> LiveStream:
    wake = (lambda: woken.append(1)) if woken is not None else (lambda: None)
    return LiveStream(wake, Room(), partial(message_event, max_payload_bytes=max_payload_bytes))


def topics_of(stream: LiveStream) -> list[str]:
    return [data["topic_name"] for _, data in stream.take(100)]


def test_a_stream_gets_what_its_filters_match_once() -> None:
    feed = MessageFeed(NOWHERE)
    woken: list[Any] = []
    stream = stream_of(woken)
    feed.add("default", ["a/+", "a/#", "b"], stream)
    records = [message(name) for name in ("a/1", "b", "c", "a")]
    feed.receive(
        [*records, message("b", tenant="other"), FakeRecord(b"\0barrier/x", None, [], 9, 0)]
    )
    assert topics_of(stream) == ["a/1", "b", "a"]
    assert woken == [1]
    feed.remove("default", ["a/+", "a/#", "b"], stream)
    feed.receive([message("b")])
    assert topics_of(stream) == []


def test_a_message_is_shown_as_it_is() -> None:
    feed = MessageFeed(NOWHERE)
    stream = stream_of(max_payload_bytes=4)
    feed.add("default", ["#"], stream)
    feed.receive(
        [
            message("a", b"text", offset=7, at_ms=1_600_000_000_123),
            message("a", b"\xff"),
            message("a", b"too large"),
        ]
    )
    text, binary, large = (data for _, data in stream.take(10))
    assert (text["payload"], text["payload_base64"], text["payload_bytes"]) == ("text", None, 4)
    assert text["received_at"] == "2020-09-13T12:26:40.123Z"
    assert (text["partition"], text["offset"], text["qos"]) == (0, 7, 1)
    assert (binary["payload"], binary["payload_base64"]) == (None, "/w==")
    assert (large["payload"], large["payload_base64"], large["payload_bytes"]) == (None, None, 9)


def test_what_is_no_message_is_passed_over() -> None:
    feed = MessageFeed(NOWHERE)
    stream = stream_of()
    feed.add("default", ["#"], stream)
    feed.receive(
        [
            FakeRecord(b"default/a", b"x", [], 1, 0),  # headers are missing
            FakeRecord(b"no tenant", b"x", [], 2, 0),
            FakeRecord(b"\xff/a", b"x", [], 3, 0),
        ]
    )
    assert [data for _, data in stream.take(10)] == [{}]  # readers leave an empty event out


def test_topics_remember_the_last_message_and_the_rate() -> None:
    topics = RecentTopics()
    topics.begin(1_000_000)
    for number in range(100):
        record = message("a", b"%d" % number, at_ms=1_000_000 + 100 * number)
        topics.note(("default", "a"), record)
    ((name, seen),) = topics.all("default", "")
    assert (name, seen.messages, seen.last.payload) == ("a", 100, b"99")
    # Ten a second for ten seconds: e to the minus one of the past is not seen yet.
    assert 6 < seen.rate(1_010) < 7
    assert seen.rate(1_200) < 0.001


def test_topics_longest_silent_are_forgotten() -> None:
    topics = RecentTopics(max_topics=2)
    for name in ("a", "b", "a", "c"):
        topics.note(("default", name), message(name))
    assert [name for name, _ in topics.all("default", "")] == ["a", "c"]
    assert topics.forgotten == 1
    assert topics.all("other", "") == []
    assert [name for name, _ in topics.all("default", "a")] == ["c"]


def test_of_a_large_payload_only_the_size_is_remembered() -> None:
    topics = RecentTopics()
    topics.note(("default", "a"), message("a", b"x" * (MAX_KEPT_BYTES + 1)))
    ((_, seen),) = topics.all("default", "")
    assert (seen.last.payload, seen.last.payload_bytes) == (None, MAX_KEPT_BYTES + 1)


def output(rule: str, tenant: str = "default", row: bytes = b'{"t":1}') -> FakeRecord:
    position = Position("i", 0, 5, 0)
    made = Output(tenant, rule, 2, row, position, 1_600_000_000_000, "a/b", "c1")
    return FakeRecord(rule_record_key(tenant, rule), row, output_headers(made), 0, 0)


def test_outputs_come_by_rule_or_all_of_a_tenant() -> None:
    feed = OutputFeed(NOWHERE)
    one, every = (LiveStream(lambda: None, Room(), output_event) for _ in range(2))
    feed.add("default", "hot", one)
    feed.add("default", None, every)
    feed.receive([output("hot"), output("cold"), output("hot", "other")])
    assert [data["rule_id"] for _, data in one.take(10)] == ["hot"]
    events = every.take(10)
    assert [data["rule_id"] for _, data in events] == ["hot", "cold"]
    assert events[0] == (
        "output",
        {
            "tenant": "default",
            "rule_id": "hot",
            "version": 2,
            "row": {"t": 1},
            "topic_name": "a/b",
            "client_id": "c1",
            "message_id": None,
            "received_at": "2020-09-13T12:26:40.000Z",
            "output_id": "hot/2/i:0:5:0",
        },
    )
    feed.remove(one)
    feed.receive([output("hot", row=b"{")])
    assert [data for _, data in every.take(10)] == [{}]
