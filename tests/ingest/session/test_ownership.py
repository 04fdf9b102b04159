from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ingest.session.shard.effects import AppendRecords, Effect, Find
from mqlake.errors import InvalidRecord
from mqlake.records.progress import ProgressRecord, decode_progress, encode_progress
from mqlake.records.sessions import (
    SessionRecord,
    StoredSubscription,
    encode_session,
    progress_key,
    session_key,
    session_members,
    will_exchange,
)
from mqlake.records.shards import (
    LEFT,
    Run,
    claim_key,
    encode_claim,
    encode_run,
    left_key,
    question_key,
    stamp_headers,
)
from tests.ingest.session.one_shard import KEY, ME, OTHER, OneShard, a_session, a_will

if TYPE_CHECKING:
    from collections.abc import Callable

THIRD = Run("g3", "i3")


def lefts(one: OneShard) -> list[bytes]:
    return [record.key for record in one.log if record.key and record.key.startswith(LEFT.encode())]


def nobody(_run: Run) -> bool:
    return False


def is_other(run: Run) -> bool:
    return run == OTHER


def test_what_an_owner_writes_of_an_absent_session_counts_behind_a_claim_that_ended() -> None:
    one = OneShard()
    epoch = one.claim(OTHER)
    one.write(a_session(), epoch)
    one.write(a_session(connected=False, will=a_will(3), will_at_ms=20), epoch)
    one.end_claim(THIRD, one.claim(THIRD))
    one.write(a_session(connected=False), epoch, owner=one.shard.owner_epoch)
    session = one.shard.session(KEY)
    assert session is not None
    assert session.will is None


def test_an_owner_is_too_late_behind_a_later_holder() -> None:
    one = OneShard()
    epoch = one.claim(OTHER)
    one.write(a_session(connected=False), epoch)
    later = one.claim(THIRD)
    one.write(a_session(THIRD), later)
    one.write(None, epoch, owner=one.shard.owner_epoch)
    assert one.shard.session(KEY) == a_session(THIRD)


def test_progress_that_cannot_be_read_is_passed_over() -> None:
    one = OneShard()
    epoch = one.claim(OTHER)
    one.write(a_session(), epoch)
    key, stamp = progress_key(*KEY), stamp_headers(OTHER.incarnation, epoch)
    progress = encode_progress(ProgressRecord("s1", [7], settled=False))
    one.append(key, progress, stamp)
    for malformed in (b"{", progress.replace(b"[7]", b"null"), progress.replace(b"[]", b"[0]")):
        with pytest.raises(InvalidRecord):
            one.append(key, malformed, stamp)
        assert one.shard.store.progress(KEY) == progress
    one.shard.tick(99_999, lambda run: run == OTHER, nobody, lambda _: True)
    one.act()
    session = one.shard.session(KEY)
    assert session is not None
    assert not session.connected


def test_an_ended_session_stays_fenced_behind_a_connection_that_wrote_nothing() -> None:
    one = OneShard()
    epoch = one.claim(OTHER)
    one.write(a_session(session_expiry_interval=0), epoch)
    later = one.claim(THIRD)
    one.write(None, epoch)
    one.end_claim(THIRD, later)
    one.write(a_session(), epoch)
    assert one.shard.session(KEY) is None


def test_a_claim_that_an_owner_settled_stays_fenced() -> None:
    one = OneShard()
    epoch = one.claim(OTHER)
    one.end_claim(ME, epoch, owner=one.shard.owner_epoch)
    one.write(a_session(), epoch)
    assert one.shard.session(KEY) is None
    one.claim(THIRD)
    one.write(a_session(), epoch)
    assert one.shard.session(KEY) is None


def settle(one: OneShard) -> SessionRecord | None:
    one.shard.tick(99_999, lambda run: run == OTHER, nobody, lambda _: True)
    one.act()
    return one.shard.session(KEY)


def test_what_a_full_claim_said_is_settled_as_if_its_client_had_been_here() -> None:
    one = OneShard()
    said = a_session(session_id="s2", will=a_will(delay=9))
    one.claim(OTHER, session=said)
    assert one.shard.session(KEY) is None
    found = settle(one)
    assert found is not None
    assert (found.session_id, found.connected, found.will) == ("s2", False, said.will)
    later = one.claim(THIRD)
    assert one.told[-1][2]["session"]["id"] == "s2"
    assert one.told[-1][2]["epoch"] == later


def test_it_has_what_was_stored_of_the_session_that_its_claim_has_taken() -> None:
    one = OneShard()
    epoch = one.claim(THIRD)
    progress = encode_progress(ProgressRecord("s1", [7], settled=True))
    one.append(progress_key(*KEY), progress, stamp_headers(THIRD.incarnation, epoch))
    subscriptions = [StoredSubscription("a", 1)]
    one.write(a_session(THIRD, connected=False, subscriptions=subscriptions, more=1), epoch)
    one.claim(OTHER, session=a_session(session_id="s2", session_expiry_interval=9, will=a_will()))
    found = settle(one)
    assert found is not None
    assert (found.session_id, found.subscriptions, found.more) == ("s1", subscriptions, 1)
    assert (found.gateway, found.session_expiry_interval) == (OTHER.gateway, 9)
    assert one.wills == [will_exchange(found)]
    # Marks say nothing of it, and its client may have been sent something.
    unsettled = ProgressRecord("s1", [7], settled=False, sent_before=[0])
    assert one.shard.store.progress(KEY) == encode_progress(unsettled)


@pytest.mark.parametrize("malformed", [{"will": 7}, {"tenant": "x"}])
def test_what_a_claim_says_that_is_no_session_of_the_client_is_passed_over(
    malformed: dict[str, object],
) -> None:
    one = OneShard()
    value = encode_claim(
        OTHER, 1, clean_start=False, session=session_members(a_session()) | malformed
    )
    one.append(claim_key(*KEY), value, stamp_headers(OTHER.incarnation))
    assert settle(one) is None
    assert not list(one.shard.store.holders())


def test_a_claim_that_is_over_is_refused_when_it_is_repeated() -> None:
    one = OneShard()
    epoch = one.claim(OTHER)
    one.end_claim(OTHER, epoch)
    later = one.claim(THIRD)
    one.write(a_session(THIRD), later)
    one.claim(OTHER, epoch=epoch)
    assert one.told[-1][:2] == ("g2", "refuse")


def test_a_new_owner_acts_when_the_one_before_has_left() -> None:
    one = OneShard()
    one.own(OTHER)
    assert lefts(one) == [b"l/g1"]
    one.own(ME)
    assert not one.shard.is_active
    one.append(left_key("g2"), encode_run(OTHER), stamp_headers("i2"))
    assert one.shard.is_active


def test_a_new_owner_acts_when_the_one_before_is_silent() -> None:
    one = OneShard()
    one.own(OTHER)
    one.own(ME)
    one.shard.tick(0, nobody, nobody, nobody)
    assert not one.shard.is_active
    one.shard.tick(0, nobody, lambda run: run == OTHER, nobody)
    assert one.shard.is_active


def test_an_owner_leaves_when_its_last_act_is_over() -> None:
    one = OneShard()
    one.is_slow = True
    one.claim(OTHER)
    one.own(OTHER)
    assert lefts(one) == []
    one.fence()
    assert lefts(one) == [b"l/g1"]


def test_an_owner_says_again_that_it_has_left() -> None:
    one = OneShard()
    one.is_slow = True
    one.own(OTHER)
    one.fence()
    assert lefts(one) == []
    one.shard.tick(0, nobody, nobody, nobody)
    one.act()
    assert lefts(one) == [b"l/g1"]


def test_who_has_just_asked_what_it_holds_is_not_settled() -> None:
    one = OneShard()
    epoch = one.claim(OTHER)
    one.write(a_session(), epoch)
    offset = one.append(question_key("g2"), encode_run(OTHER, 1), stamp_headers("i2"))
    now_ms = one.log[offset].timestamp_ms
    one.shard.tick(now_ms, lambda run: run == OTHER, nobody, nobody)
    one.act()
    session = one.shard.session(KEY)
    assert session is not None
    assert session.connected


class Free:
    """Holds what a shard has taken; lets go of nothing by itself."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.claims: list[tuple[int, int]] = []

    def let_go(self, key: tuple[str, str]) -> None:
        self.asked.append(key)

    def claimed(self, key: tuple[str, str], number: int, epoch: int) -> None:
        assert key == KEY
        self.claims.append((number, epoch))


def taken() -> tuple[OneShard, Free]:
    """Return a shard with a session that its owner has begun without a claim."""
    one, free = OneShard(), Free()
    one.shard.taken.free = free
    written = len(one.log)
    assert one.shard.take(KEY, 2, None)
    assert len(one.log) == written
    return one, free


def test_a_session_that_was_taken_is_given_on_once_it_was_let_go_of() -> None:
    one, free = taken()
    assert not one.shard.take(KEY, 3, None)
    one.claim(OTHER)
    assert free.asked == [KEY]
    assert one.told == []
    one.shard.untake(KEY)
    one.act()
    assert one.told_actions() == [("g2", "grant")]


def test_a_session_that_was_taken_is_asked_for_again_when_its_claim_is_repeated() -> None:
    one, free = taken()
    epoch = one.claim(OTHER)
    one.claim(OTHER, epoch=epoch)
    assert free.asked == [KEY, KEY]


def test_a_session_that_is_taken_and_over_leaves_nothing_in_the_log() -> None:
    one, _ = taken()
    written = len(one.log)
    one.shard.untake(KEY)
    one.act()
    assert len(one.log) == written
    assert one.shard.take(KEY, 3, None)


def test_what_was_taken_is_claimed_before_its_owner_leaves() -> None:
    one, free = taken()
    one.own(OTHER)
    kinds = [(record.key or b"").partition(b"/")[0] for record in one.log[-2:]]
    assert kinds == [b"c", b"l"]
    assert free.claims == [(2, len(one.log) - 2)]
    assert one.shard.has_taken  # until the next owner has answered
    entry = one.shard.store.get(KEY)
    assert entry is not None
    assert entry.holder == ME


def test_what_was_taken_is_let_go_of_when_somebody_claims_it_behind_the_next_owner() -> None:
    one, free = taken()
    one.is_slow = True
    one.own(OTHER)
    one.claim(THIRD)
    assert free.asked == [KEY]
    one.shard.untake(KEY)  # as whoever holds it does
    one.resume()
    assert b"c/" not in (one.log[-1].key or b"")
    entry = one.shard.store.get(KEY)
    assert entry is not None
    assert entry.holder == THIRD


def test_the_next_owner_answers_for_what_goes_on() -> None:
    one = OneShard()
    one.own(OTHER)
    epoch = one.goes_on(OTHER, number=2)
    one.own(ME)
    assert one.told == []  # the one before may act yet
    one.append(left_key("g2"), encode_run(OTHER), stamp_headers("i2"))
    assert one.told[-1][:2] == ("g2", "grant")
    assert one.told[-1][2]["epoch"] == epoch


def test_what_goes_on_is_refused_by_an_owner_that_has_begun_it_anew() -> None:
    one, free = taken()
    one.goes_on(OTHER, number=2)
    assert one.told_actions() == [("g2", "refuse")]
    assert free.asked == []


def test_what_goes_on_gives_way_to_whoever_has_come_since() -> None:
    one = OneShard()
    one.write(a_session(THIRD), one.claim(THIRD))
    one.told.clear()
    one.goes_on(OTHER, number=2)
    entry = one.shard.store.get(KEY)
    assert entry is not None
    assert (entry.holder, entry.claim) == (THIRD, None)
    assert one.told == []


def test_what_was_taken_stays_so_when_its_gateway_owns_the_shard_anew() -> None:
    one, free = taken()
    one.own(ME)
    assert one.shard.has_taken
    assert free.asked == []


def test_a_gateway_that_was_cut_off_still_holds_what_it_has_taken() -> None:
    one, _ = taken()
    one.append(question_key("g1"), encode_run(ME, 1), stamp_headers("i1"))
    assert one.told[-1][:2] == ("g1", "confirm")
    assert one.told[-1][2]["keys"] == [list(KEY)]


def test_who_asks_is_told_what_earlier_runs_of_its_gateway_hold_until_it_is_settled() -> None:
    one = OneShard()
    one.write(a_session(), one.claim(OTHER))
    later = Run(OTHER.gateway, "later")
    for dead, left in ((nobody, [1, 0]), (is_other, [0, 0])):
        one.shard.tick(1_000_000, dead, nobody, is_other)
        one.act()
        one.append(question_key("g2"), encode_run(later, 1), stamp_headers("later"))
        gateway, action, value = one.told[-1]
        assert (gateway, action, value["keys"]) == ("g2", "confirm", [])
        assert list(value["earlier"]) == left


def test_a_claim_that_is_written_again_does_not_take_the_place_of_a_later_one() -> None:
    one = OneShard()
    one.write(a_session(), one.claim(OTHER))
    earlier = one.claim(THIRD, number=1)
    later = one.claim(THIRD, number=2)
    one.told.clear()
    value = encode_claim(THIRD, 1, clean_start=False)
    stamp = stamp_headers(ME.incarnation, earlier, one.shard.owner_epoch)
    one.append(claim_key(*KEY), value, stamp)
    entry = one.shard.store.get(KEY)
    assert entry is not None
    assert entry.claim is not None
    assert entry.claim.epoch == later
    assert ("g3", "refuse") not in one.told_actions()


def test_the_end_of_another_claim_is_asked_about_no_more_than_once_at_a_time() -> None:
    one = OneShard()
    one.write(a_session(), one.claim(OTHER))
    one.claim(THIRD)
    one.told.clear()
    one.end_claim(OTHER, 99)
    assert one.told == []


def a_shard_where_a_message_is_on_its_way() -> OneShard:
    one = OneShard()
    epoch = one.claim(OTHER)
    session = a_session()
    one.write(session, epoch)
    progress = ProgressRecord(session.session_id, [0], settled=False, storing=[7], storing_from=[0])
    one.append(progress_key(*KEY), encode_progress(progress), stamp_headers("i2", epoch))
    return one


def test_a_session_whose_message_may_still_come_is_settled_last() -> None:
    one = a_shard_where_a_message_is_on_its_way()
    for _ in range(2):
        one.shard.tick(1_000_000, is_other, nobody, nobody)
        one.act()
        session = one.shard.session(KEY)
        assert session is not None
        assert session.connected
    one.shard.tick(1_000_000, is_other, nobody, is_other)
    one.act()
    session, value = one.shard.session(KEY), one.shard.store.progress(KEY)
    assert session is not None
    assert value is not None
    assert not session.connected
    assert decode_progress(value).storing == []


def test_a_dead_gateway_that_comes_back_keeps_what_was_not_settled() -> None:
    one = a_shard_where_a_message_is_on_its_way()
    one.is_slow = True
    one.shard.tick(1_000_000, is_other, nobody, nobody)
    one.append(question_key("g2"), encode_run(OTHER, 1), stamp_headers("i2"))
    one.resume()
    gateway, action, value = one.told[-1]
    assert (gateway, action, value["keys"]) == ("g2", "confirm", [list(KEY)])
    one.shard.tick(1_000_000, nobody, nobody, nobody)
    one.shard.tick(10_000_000, is_other, nobody, is_other)
    one.act()
    session = one.shard.session(KEY)
    assert session is not None
    assert not session.connected


@pytest.mark.parametrize("effect", [Find, AppendRecords])
@pytest.mark.parametrize("is_spent", [is_other, nobody])
def test_a_dead_gateway_is_settled_anew_when_the_log_did_not_answer(
    effect: type[Effect[object]], is_spent: Callable[[Run], bool]
) -> None:
    one = OneShard()
    one.write(a_session(), one.claim(OTHER))
    one.fails = effect
    one.shard.tick(1_000_000, is_other, nobody, is_spent)
    one.act()
    assert one.shard.store.held_by(OTHER) == [KEY]
    one.fails = None
    one.shard.tick(1_001_000, is_other, nobody, is_spent)
    one.act()
    assert one.shard.store.held_by(OTHER) == []


def test_a_session_whose_subscriptions_cannot_be_read_is_as_none() -> None:
    one = OneShard()
    epoch = one.claim(OTHER)
    found = json.loads(encode_session(a_session(connected=False))) | {"subscriptions": [{}]}
    value = json.dumps(found).encode()
    one.append(session_key(*KEY), value, stamp_headers("i", epoch))
    assert one.shard.session(KEY) is None
    one.claim(THIRD)
    one.act()
    assert one.told[-1][:2] == ("g3", "grant")
