"""Who writes of a session under an epoch that is over is told that the session is lost."""

from __future__ import annotations

from typing import Any

import pytest

from ingest.session.shard import late_writers
from ingest.session.shard.acts import LOST
from mqlake.records.progress import ProgressRecord, encode_progress
from mqlake.records.sessions import (
    StoredSubscription,
    encode_session,
    encode_subscription_record,
    progress_key,
    session_key,
    subscription_key,
)
from mqlake.records.shards import Run, stamp_headers
from tests.ingest.session.one_shard import KEY, OTHER, OneShard, a_session

THIRD = Run("g3", "i3")

RECORDS = {
    session_key(*KEY): encode_session(a_session()),
    progress_key(*KEY): encode_progress(ProgressRecord("s1", [7], settled=False)),
    subscription_key(*KEY, "a"): encode_subscription_record("s1", StoredSubscription("a", 1)),
}


def settled() -> tuple[OneShard, int]:
    """Return a shard whose owner has settled a session of OTHER, and the epoch of that."""
    one = OneShard()
    epoch = one.claim(OTHER)
    one.append(session_key(*KEY), RECORDS[session_key(*KEY)], stamp_of(OTHER, epoch))
    one.shard.tick(99_999, lambda run: run == OTHER, lambda _: False, lambda _: True)
    one.act()
    return one, epoch


def stamp_of(run: Run, epoch: int) -> list[tuple[str, bytes]]:
    return stamp_headers(run.incarnation, epoch)


def lost(one: OneShard) -> list[tuple[str, dict[str, Any]]]:
    return [(gateway, members) for gateway, action, members in one.told if action == LOST]


@pytest.mark.parametrize("key", RECORDS)
def test_the_gateway_is_told_by_any_record_of_the_session(key: bytes) -> None:
    one, epoch = settled()
    assert not lost(one)
    one.append(key, RECORDS[key], stamp_of(OTHER, epoch))
    [(gateway, members)] = lost(one)
    assert gateway == OTHER.gateway
    assert (members["tenant"], members["client_id"], members["epoch"]) == (*KEY, epoch)


def test_a_later_holder_does_not_hide_the_one_before() -> None:
    one, epoch = settled()
    later = one.claim(THIRD)
    one.append(session_key(*KEY), encode_session(a_session(THIRD)), stamp_of(THIRD, later))
    one.append(progress_key(*KEY), RECORDS[progress_key(*KEY)], stamp_of(OTHER, epoch))
    assert [(gateway, members["epoch"]) for gateway, members in lost(one)] == [
        (OTHER.gateway, epoch)
    ]


def test_a_record_that_counts_tells_nobody() -> None:
    one = OneShard()
    epoch = one.claim(OTHER)
    for key, value in RECORDS.items():
        one.append(key, value, stamp_of(OTHER, epoch))
    assert not lost(one)


def test_one_that_goes_on_is_told_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_writers, "TELL_AGAIN_MS", 5)  # the log of these tests has one a ms
    one, epoch = settled()
    key = progress_key(*KEY)
    told = []
    for _ in range(12):
        one.append(key, RECORDS[key], stamp_of(OTHER, epoch))
        told.append(len(lost(one)))
    assert told[:2] == [1, 1]
    assert 2 < told[-1] < 12


def test_a_gateway_that_does_not_own_the_shard_tells_nobody() -> None:
    one, epoch = settled()
    one.own(THIRD)
    one.append(progress_key(*KEY), RECORDS[progress_key(*KEY)], stamp_of(OTHER, epoch))
    assert not lost(one)


def test_what_an_owner_before_has_written_tells_nobody() -> None:
    one, epoch = settled()
    before = one.shard.owner_epoch
    one.own(THIRD)
    one.own(one.shard.me)
    one.act()
    one.append(progress_key(*KEY), None, stamp_headers(OTHER.incarnation, epoch, before))
    assert not lost(one)


def test_a_late_record_does_not_undo_what_its_owner_is_about_to_write() -> None:
    one, epoch = settled()
    one.is_slow = True
    assert one.shard.end_stored(KEY, 5)
    one.act()
    one.append(session_key(*KEY), RECORDS[session_key(*KEY)], stamp_of(OTHER, epoch))
    one.resume()
    assert one.shard.session(KEY) is None
    assert [record.value for record in one.log if record.key == session_key(*KEY)][-1] is None


def test_a_late_record_that_an_act_has_not_replaced_is_written_over_after_it() -> None:
    one, epoch = settled()
    one.is_slow = True
    one.claim(THIRD)  # the act of handing over writes no session
    key = progress_key(*KEY)
    one.append(key, RECORDS[key], stamp_of(OTHER, epoch))
    one.resume()
    assert [record.value for record in one.log if record.key == key][-1] is None
