from typing import Any

from mqlake.shard_records import Run
from tests.ingest.session.one_shard import KEY, OTHER, OneShard, a_session, a_will

THIRD = Run("g3", "i3")


def take_over(one: OneShard, **changes: Any) -> None:
    """Let a gateway claim the session that another holds, and that lets go of it then."""
    epoch = one.claim(OTHER)
    one.write(a_session(**changes), epoch)
    one.claim(THIRD)
    closed = a_session(connected=False, **changes)
    one.write(closed, epoch)


def test_a_will_without_delay_is_published_when_the_session_is_taken_over() -> None:
    one = OneShard()
    take_over(one, will=a_will(), will_at_ms=20)
    assert one.wills == [b"s1/will/i2/10"]
    assert one.told[-1][:2] == ("g3", "grant")
    assert one.told[-1][2]["session"]["will"] is None


def test_a_session_of_its_connection_is_not_there_for_who_takes_it_over() -> None:
    one = OneShard()
    take_over(one, session_expiry_interval=0)
    assert one.told[-1][:2] == ("g3", "grant")
    assert one.told[-1][2]["session"] is None


def test_a_repeated_claim_does_not_end_the_session_that_was_begun_with_it() -> None:
    one = OneShard()
    epoch = one.claim(OTHER)
    one.is_slow = True
    one.claim(OTHER, epoch=epoch)  # as its gateway was not told yet
    one.write(a_session(session_expiry_interval=0, clean_start=True), epoch)
    one.told.clear()
    one.resume()
    assert one.told == []
    assert one.shard.session(KEY) is not None
