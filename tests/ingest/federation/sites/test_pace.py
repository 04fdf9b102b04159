"""Rates of a link: so much at once, and so much a second after that."""

from ingest.federation.sites.streams.pace import SendingPace, size_of
from ingest.protocol.packets import Publish


def crossed(pace: SendingPace, sizes: list[int], until: float) -> int:
    """Return how many messages cross in a time, each as soon as it may."""
    count, now = 0, 0.0
    for size in sizes:
        now = max(now, pace.free_at)
        if now > until:
            break
        pace.note(size, now)
        count += 1
    return count


def test_without_a_rate_nothing_waits() -> None:
    assert crossed(SendingPace(0, 0), [10**6] * 1000, 0.0) == 1000


def test_messages_cross_at_their_rate_after_those_of_a_second_at_once() -> None:
    assert crossed(SendingPace(10, 0), [1] * 1000, 0.0) in (10, 11)
    assert crossed(SendingPace(10, 0), [1] * 1000, 5.0) in (60, 61)


def test_a_message_larger_than_the_rate_crosses_and_is_owed() -> None:
    pace = SendingPace(0, 100)
    pace.note(1100, 0.0)
    assert pace.free_at == 10.0


def test_of_two_rates_the_slower_one_counts() -> None:
    assert crossed(SendingPace(10, 1000), [1] * 1000, 5.0) in (60, 61)
    assert crossed(SendingPace(10, 100), [100] * 1000, 5.0) in (6, 7)


def test_topic_and_payload_count() -> None:
    assert size_of(Publish("f/é", b"123")) == 7
