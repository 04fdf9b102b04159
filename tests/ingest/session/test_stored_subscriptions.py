"""Subscriptions with records of their own: which count, who gets them, and when they go."""

from typing import Any

import pytest

from ingest.session.shard import stored_subscriptions
from mqlake.errors import InvalidRecord
from mqlake.records.sessions import (
    StoredSubscription,
    StoredWill,
    encode_subscription_record,
    subscription_key,
)
from mqlake.records.shards import Run, stamp_headers
from tests.ingest.session.one_shard import KEY, ME, OTHER, OneShard, a_session, a_will

THIRD = Run("g3", "i3")


def put(
    one: OneShard, topic_filter: str, epoch: int, session_id: str = "s1", owner: int | None = None
) -> int:
    value = encode_subscription_record(session_id, StoredSubscription(topic_filter, 1))
    key = subscription_key(*KEY, topic_filter)
    return one.append(key, value, stamp_headers("i", epoch, owner))


def remove(one: OneShard, topic_filter: str, epoch: int, owner: int | None = None) -> int:
    key = subscription_key(*KEY, topic_filter)
    return one.append(key, None, stamp_headers("i", epoch, owner))


def known(one: OneShard) -> list[str]:
    return [topic_filter for topic_filter, _ in one.shard.store.subscriptions(KEY, "", 1_000)]


def in_log(one: OneShard) -> set[str]:
    """Return under which filters the last record is one."""
    prefix = subscription_key(*KEY, "")
    last = {one.key: one.value for one in one.log if one.key and one.key.startswith(prefix)}
    return {key[len(prefix) :].decode() for key, value in last.items() if key and value}


def tick(one: OneShard) -> None:
    one.shard.tick(2_000, _no, _no, _no)
    one.act()


def _no(_run: Run) -> bool:
    return False


def held(one: OneShard, *topic_filters: str) -> int:
    """Have a gateway hold a session with subscriptions; return its epoch."""
    epoch = one.claim(OTHER)
    one.write(a_session(), epoch)
    for topic_filter in topic_filters:
        put(one, topic_filter, epoch)
    return epoch


def granted(one: OneShard) -> tuple[set[str], dict[str, Any]]:
    """Return what the last claimant was given."""
    pages = [told for _, action, told in one.told if action == "subscriptions"]
    grant = [told for _, action, told in one.told if action == "grant"][-1]
    mine = [page for page in pages if page["number"] == grant["number"]]
    return {each["filter"] for page in mine for each in page["subscriptions"]}, grant


def test_a_session_is_handed_over_with_its_subscriptions_page_by_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stored_subscriptions, "ROWS_AT_ONCE", 2)
    one = OneShard()
    epoch = held(one, "a", "b", "c/d", "e", "f")
    one.write(a_session(connected=False), epoch)
    one.claim(THIRD, 7)
    filters, grant = granted(one)
    assert filters == {"a", "b", "c/d", "e", "f"}
    assert grant["subscriptions"] == 5
    pages = [told["subscriptions"] for _, action, told in one.told if action == "subscriptions"]
    assert [len(page) for page in pages] == [2, 2, 1]


def test_a_page_is_full_when_its_records_are_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_subscriptions, "PAGE_BYTES", 100)
    one = OneShard()
    held(one, "a" * 90, "b" * 90)
    pages = list(one.shard.subscriptions.pages(KEY, "s1"))
    assert [len(page) for page in pages] == [1, 1]


def test_a_record_of_a_holder_that_let_go_does_not_count() -> None:
    one = OneShard()
    epoch = held(one, "a")
    one.write(a_session(connected=False), epoch)
    put(one, "late", epoch)
    remove(one, "a", epoch)
    assert known(one) == ["a"]
    assert in_log(one) == {"a"}  # the owner has written again what counts


def test_the_holder_is_asked_for_what_an_earlier_one_has_written_over() -> None:
    one = OneShard()
    epoch = held(one, "a")
    one.write(a_session(connected=False), epoch)
    later = one.claim(THIRD)
    one.write(a_session(THIRD), later)
    remove(one, "a", epoch)
    gateway, action, told = one.told[-1]
    assert (gateway, action, told["filter"], told["epoch"]) == ("g3", "rewrite", "a", later)
    assert known(one) == ["a"]
    put(one, "a", later)
    assert known(one) == ["a"]


def test_a_session_that_ends_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_subscriptions, "ROWS_AT_ONCE", 2)
    one = OneShard()
    epoch = held(one, "a", "b", "c", "d", "e")
    one.write(None, epoch)
    tick(one)
    assert (known(one), in_log(one)) == ([], set())


def test_what_a_later_session_has_is_not_removed_with_an_earlier_one() -> None:
    one = OneShard()
    epoch = held(one, "a", "b")
    one.write(None, epoch)
    one.is_slow = True
    tick(one)  # the owner is about to remove both
    later = one.claim(THIRD)
    one.write(a_session(THIRD, session_id="s2"), later)
    put(one, "b", later, "s2")
    one.resume()
    assert known(one) == ["b"]
    one.write(a_session(THIRD, connected=False, session_id="s2"), later)
    one.claim(OTHER, 9)
    assert granted(one)[0] == {"b"}


def test_a_removal_that_comes_too_late_for_a_later_session_is_undone() -> None:
    one = OneShard()
    epoch = held(one, "a")
    one.write(None, epoch)
    later = one.claim(THIRD)
    one.write(a_session(THIRD, session_id="s2"), later)
    put(one, "a", later, "s2")
    remove(one, "a", epoch, one.shard.owner_epoch)
    assert known(one) == ["a"]
    assert one.told[-1][1:] == ("rewrite", one.told[-1][2])


def test_records_of_an_earlier_session_are_not_handed_over() -> None:
    one = OneShard()
    epoch = held(one, "a", "b")
    one.write(None, epoch)
    later = one.claim(THIRD)
    one.write(a_session(THIRD, session_id="s2"), later)
    put(one, "c", later, "s2")
    one.write(a_session(THIRD, connected=False, session_id="s2"), later)
    one.claim(OTHER, 9)
    assert granted(one)[0] == {"c"}


def test_share_groups_learn_of_all_groups_of_a_session_that_ends() -> None:
    one = OneShard()
    epoch = held(one, "a", "$share/g/a", "$share/g/b", "$share0", "b")
    one.write(a_session(connected=False), epoch)
    assert one.shard.subscriptions.shared_filters(KEY, "s1") == ["$share/g/a", "$share/g/b"]
    assert one.shard.subscriptions.shared_filters(KEY, "s2") == []


def test_a_will_is_published_and_subscriptions_stay() -> None:
    one = OneShard()
    will: StoredWill = a_will(0)
    epoch = held(one, "a")
    one.write(a_session(connected=False, will=will, will_at_ms=20), epoch)
    tick(one)
    assert one.wills
    assert known(one) == ["a"]


def test_what_a_new_owner_finds_of_ended_sessions_it_removes() -> None:
    one = OneShard()
    one.own(OTHER)
    epoch = held(one, "a")
    one.write(None, epoch)
    tick(one)
    assert in_log(one) == {"a"}  # this gateway does not own the shard
    one.own(ME)
    one.shard.tick(2_000, _no, lambda _: True, _no)  # the owner before is silent
    tick(one)
    assert in_log(one) == set()


def test_a_record_without_a_session_is_removed() -> None:
    one = OneShard()
    put(one, "a", 5)
    one.shard.tick(2_000, lambda _: True, _no, _no)
    one.act()
    tick(one)
    assert (known(one), in_log(one)) == ([], set())


def test_a_record_under_another_filters_key_is_refused() -> None:
    one = OneShard()
    epoch = held(one)
    value = encode_subscription_record("s1", StoredSubscription("b", 1))
    with pytest.raises(InvalidRecord, match="of another filter"):
        one.append(subscription_key(*KEY, "a"), value, stamp_headers("i", epoch))
    with pytest.raises(InvalidRecord, match="expected kind/tenant/client"):
        one.append(b"u/t/c", b"{}", stamp_headers("i", epoch))
    assert known(one) == []
