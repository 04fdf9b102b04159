from typing import Any

from mqlake.records.messages import LogRecord
from mqlake.records.shards import OWNER_KEY, Run, claim_key, read_stamp
from tests.ingest.session.one_shard import KEY, ME, OTHER, OneShard, a_session, a_will

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


def compacted(log: list[LogRecord]) -> list[LogRecord]:
    """Return what compaction leaves, old tombstones not."""
    last = {record.key: record for record in log}
    return [record for record in log if last[record.key] is record and record.value is not None]


def test_a_session_that_has_ended_leaves_no_claim_from_which_it_would_come_back() -> None:
    """Its holder had no time to end the claim."""
    one = OneShard()
    session = a_session(will=a_will())
    epoch = one.claim(OTHER, session=session)
    one.write(session, epoch)
    one.write(a_session(connected=False), epoch)
    assert one.shard.end_stored(KEY, 2_000)
    one.act()
    again = OneShard()
    for record in compacted(one.log):
        again.append(record.key or b"", record.value, record.headers)
    again.own(ME)
    assert again.shard.store.held_by(OTHER) == []


def test_a_session_that_somebody_waits_for_ends_without_his_claim() -> None:
    one = OneShard()
    one.write(a_session(connected=False), one.claim(OTHER))
    one.claim(THIRD, clean_start=True)
    assert one.shard.session(KEY) is None
    assert one.told[-1][:2] == ("g3", "grant")
    assert [record.key for record in compacted(one.log)] == [OWNER_KEY, claim_key(*KEY)]


def test_an_end_of_a_claim_that_comes_late_does_not_hide_the_next_one() -> None:
    one = OneShard()
    epoch = one.claim(OTHER)
    one.write(a_session(connected=False), epoch)
    later = one.claim(THIRD)
    one.end_claim(OTHER, epoch)
    (claim,) = [record for record in compacted(one.log) if record.key == claim_key(*KEY)]
    assert read_stamp(claim.headers).epoch == later
