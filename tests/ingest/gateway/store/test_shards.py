"""One contract for the shard's store in memory and on disk."""

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ingest.gateway.store import shards
from ingest.gateway.store.database import Database
from ingest.gateway.store.shards import SqliteShardStore
from ingest.session.shard.entries import UNKNOWN_RUN, ShardEntry
from ingest.session.shard.memory_shards import MemoryShardStore
from ingest.session.shard.stored_subscriptions import SubscriptionRow
from mqlake.records.shards import Claim, Run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest.session.shard.entries import ShardStore

A, B, C = ("t", "a"), ("t", "b"), ("u", "a")
ONE, TWO = Run("g1", "i1"), Run("g2", "i2")
WITH_TWO = json.dumps(
    {"subscriptions": [{"filter": "a"}, {"filter": '"filter":,"more":9'}]}
).encode()
WITH_MORE = b'{"subscriptions":[{"filter":"a"}],"more":6}'
CLAIM = Claim(TWO, 3, 7, 1_000, clean_start=True, principal="user", session={"id": "s1"})


@pytest.fixture(
    params=["memory", "sqlite", "sqlite, each row at once", "sqlite, each row at once and kept"]
)
def store(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> "Iterator[ShardStore]":
    database = Database(None)
    if request.param.startswith("sqlite, each row at once"):
        monkeypatch.setattr(shards, "_MOST_UNWRITTEN", 1)
        monkeypatch.setattr(shards, "_MOST_WRITTEN", 1 if request.param.endswith("kept") else 0)
        monkeypatch.setattr(shards, "_MOST_EPOCHS", 1)
    yield MemoryShardStore() if request.param == "memory" else SqliteShardStore(database, 4)
    database.close()


def test_an_entry_comes_back_as_it_was(store: "ShardStore") -> None:
    entry = ShardEntry(9, ONE, CLAIM, CLAIM, b"session", 5, False, 100, 200)
    store.put(A, entry)
    assert store.get(A) == entry
    assert store.get(B) is None
    store.put(A, ShardEntry())
    assert store.get(A) == ShardEntry()


def test_an_entry_is_a_copy(store: "ShardStore") -> None:
    entry = ShardEntry(1)
    store.put(A, entry)
    entry.epoch = 2
    found = store.get(A)
    assert found is not None
    found.epoch = 3
    assert store.get(A) == ShardEntry(1)


def test_a_deleted_entry_takes_its_progress_along(store: "ShardStore") -> None:
    store.put(A, ShardEntry(1, session=b"s"))
    store.put_progress(A, b"p")
    store.delete(A)
    store.delete(B)
    assert (store.get(A), store.progress(A), store.count()) == (None, None, 0)


def test_progress_is_put_and_taken_away(store: "ShardStore") -> None:
    store.put_progress(A, b"1")
    store.put_progress(A, b"2")
    assert store.progress(A) == b"2"
    store.put_progress(A, None)
    store.put_progress(A, None)
    assert store.progress(A) is None


@pytest.mark.parametrize(
    ("entry", "advances"),
    [
        (None, False),
        (ShardEntry(5, ONE), True),
        (ShardEntry(5, UNKNOWN_RUN), True),
        (ShardEntry(5), False),
        (ShardEntry(6, ONE), False),
        (ShardEntry(4, ONE), False),
    ],
)
def test_progress_advances_while_the_session_is_held_under_its_epoch(
    store: "ShardStore", entry: ShardEntry | None, advances: bool
) -> None:
    if entry is not None:
        store.put(A, entry)
    store.put_progress(A, b"before")
    assert store.advance(A, 5, b"after") is advances
    assert store.progress(A) == (b"after" if advances else b"before")


def test_holders_are_the_runs_that_hold_sessions(store: "ShardStore") -> None:
    assert list(store.holders()) == []
    store.put(A, ShardEntry(1, TWO))
    store.put(B, ShardEntry(2, UNKNOWN_RUN))
    store.put(C, ShardEntry(3, TWO))
    store.put(("t", "nobody"), ShardEntry(4))
    assert set(store.holders()) == {UNKNOWN_RUN, TWO}
    store.put(B, ShardEntry(5, ONE))
    assert set(store.holders()) == {ONE, TWO}


def test_sessions_of_a_run_are_given_in_order_and_limited(store: "ShardStore") -> None:
    for key in (C, B, A):
        store.put(key, ShardEntry(1, ONE))
    store.put(("t", "z"), ShardEntry(1, Run("g1", "another")))
    assert store.held_by(ONE) == [A, B, C]
    assert store.held_by(ONE, 2) == [A, B]
    assert store.held_by(TWO) == []


def test_who_waits_has_a_claim(store: "ShardStore") -> None:
    store.put(C, ShardEntry(1, ONE, claim=CLAIM))
    store.put(A, ShardEntry(1, ONE, claim=CLAIM))
    store.put(B, ShardEntry(1, TWO, granted=CLAIM))
    assert store.waiting() == [A, C]


def test_the_earliest_is_due_first_if_nobody_holds_it(store: "ShardStore") -> None:
    store.put(A, ShardEntry(due_at_ms=30))
    store.put(B, ShardEntry(due_at_ms=10))
    store.put(C, ShardEntry(due_at_ms=20))
    store.put(("t", "held"), ShardEntry(1, ONE, due_at_ms=1))
    store.put(("t", "later"), ShardEntry(due_at_ms=31))
    assert store.due(30, 9) == [B, C, A]
    assert store.due(30, 2) == [B, C]
    assert store.due(9, 9) == []


def test_stored_sessions_are_counted_once(store: "ShardStore") -> None:
    store.put(A, ShardEntry(session=b"1"))
    store.put(A, ShardEntry(session=b"2"))
    store.put(B, ShardEntry())
    assert store.count() == 1
    store.put(B, ShardEntry(session=b"3"))
    store.put(A, ShardEntry())
    assert store.count() == 1
    store.delete(B)
    store.delete(B)
    assert store.count() == 0


def test_subscriptions_count_of_sessions_that_nobody_holds(store: "ShardStore") -> None:
    assert store.absent_subscriptions("t") == 0
    store.put(A, ShardEntry(session=WITH_MORE))
    store.put(B, ShardEntry(session=WITH_TWO))
    store.put(C, ShardEntry(session=WITH_MORE))
    assert (store.absent_subscriptions("t"), store.absent_subscriptions("u")) == (9, 7)
    store.put(B, ShardEntry(1, ONE, session=WITH_TWO))
    assert store.absent_subscriptions("t") == 7, "its client is there, and counts by itself"
    store.put(B, ShardEntry(1, session=WITH_MORE))
    store.put(A, ShardEntry(session=b'{"subscriptions":[]}'))
    assert store.absent_subscriptions("t") == 7
    store.delete(B)
    store.delete(B)
    for odd in (b"", b"[]", b"{}", b'{"subscriptions":3}', b'{"more":"x"}'):
        store.put(A, ShardEntry(session=odd))
        assert store.absent_subscriptions("t") == 0
    assert store.absent_subscriptions("u") == 7


def test_a_dropped_shard_begins_empty(tmp_path: Path) -> None:
    database = Database(tmp_path)
    store, other = SqliteShardStore(database, 1), SqliteShardStore(database, 2)
    store.put(A, ShardEntry(1, session=b"1"))
    store.put_progress(A, b"p")
    other.put(A, ShardEntry(2))
    store.close()
    again = SqliteShardStore(database, 1)
    assert (again.get(A), again.progress(A), again.count()) == (None, None, 0)
    assert other.get(A) == ShardEntry(2)
    database.close()


@pytest.mark.parametrize("most_unwritten", [1, 3, 1_000])
@pytest.mark.parametrize("most_written", [0, 100])
def test_whatever_is_done_both_stores_say_the_same(
    monkeypatch: pytest.MonkeyPatch, most_unwritten: int, most_written: int
) -> None:
    monkeypatch.setattr(shards, "_MOST_UNWRITTEN", most_unwritten)
    monkeypatch.setattr(shards, "_MOST_WRITTEN", most_written)
    monkeypatch.setattr(shards, "_MOST_EPOCHS", 4)
    choose = random.Random(7)
    database = Database(None)
    stores = (MemoryShardStore(), SqliteShardStore(database, 4))
    keys = [("t", str(number)) for number in range(8)]
    for _ in range(3_000):
        key, epoch = choose.choice(keys), choose.randrange(4)
        run = choose.choice([None, ONE, TWO, UNKNOWN_RUN])
        claim = choose.choice([None, CLAIM])
        session = choose.choice([None, b"s", WITH_TWO, WITH_MORE])
        due = choose.choice([None, 5, 6])
        entry = ShardEntry(epoch, run, None, claim, session, epoch, due is None, due, due)
        value = b"%d" % epoch
        match choose.randrange(6):
            case 0 | 1:
                for store in stores:
                    store.put(key, entry)
            case 2:
                for store in stores:
                    store.delete(key)
            case 3:
                for store in stores:
                    store.put_progress(key, value if epoch else None)
            case 4:
                advanced = [store.advance(key, epoch, value) for store in stores]
                assert advanced[0] == advanced[1]
        memory, sqlite = ((one.get(key), one.progress(key), one.count()) for one in stores)
        assert memory == sqlite
        if choose.random() < 0.1:
            lists = [
                (
                    sorted(one.holders()),
                    one.held_by(ONE),
                    one.waiting(),
                    sorted(one.due(6, 99)),
                    one.absent_subscriptions("t"),
                )
                for one in stores
            ]
            assert lists[0] == lists[1]
    database.close()


def test_subscriptions_are_listed_by_client_and_session(store: "ShardStore") -> None:
    assert not store.has_subscriptions(A)
    first, second = SubscriptionRow("s1", 4, b"1"), SubscriptionRow("s2", 9, b"2")
    for topic_filter, row in (("b", first), ("a", second), ("c/\u00fc", first), ("d", first)):
        store.put_subscription(A, topic_filter, row)
    store.put_subscription(B, "b", second)
    assert store.subscription(A, "b") == first
    assert store.subscription(A, "e") is None
    assert [one for one, _ in store.subscriptions(A, "", 9)] == ["a", "b", "c/\u00fc", "d"]
    assert store.subscriptions(A, "", 2, of="s1") == [("b", first), ("c/\u00fc", first)]
    assert store.subscriptions(A, "b", 9, of="s1") == [("c/\u00fc", first), ("d", first)]
    assert store.subscriptions(A, "", 9, but_of="s1") == [("a", second)]
    assert len(store.subscriptions(A, "", 9, but_of=None)) == 4
    store.put_subscription(A, "b", second)
    store.put_subscription(A, "a", None)
    store.put_subscription(A, "unknown", None)
    assert store.subscription(A, "b") == second
    assert store.subscription(A, "a") is None
    assert [one for one, _ in store.subscriptions(A, "", 9)] == ["b", "c/\u00fc", "d"]
    store.delete(A)
    assert store.has_subscriptions(A)
    assert len(store.subscriptions(A, "", 9)) == 3
