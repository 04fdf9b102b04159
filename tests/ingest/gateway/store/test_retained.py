from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.gateway.store.database import Database
from ingest.gateway.store.retained import (
    MAX_LOOKED_AT,
    RetainedRow,
    RetainedStore,
)
from mqlake.clock import ManualClock
from mqlake.topics.matching import filter_matches


def a_row(topic_name: str, payload: bytes | None = b"1", rank: int = 0, **more: Any) -> RetainedRow:
    row = RetainedRow(
        tenant="default",
        topic_name=topic_name,
        payload=payload,
        qos=1,
        properties=None,
        client_id="c1",
        received_at_ms=1_600_000_000_000,
        expires_at_ms=None,
        shard=0,
        rank=rank,
    )
    return row._replace(**more)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(database: Database, clock: ManualClock) -> RetainedStore:
    return RetainedStore(database, clock, remember_removed_seconds=60)


def every_page(
    store: RetainedStore, topic_filter: str, *, tenant: str = "default", limit: int = 100
) -> list[str]:
    found: list[str] = []
    page = store.page(0, tenant, topic_filter, limit=limit)
    found.extend(row.topic_name for row in page.rows)
    while page.position is not None:
        assert len(page.rows) <= limit
        page = store.page(0, tenant, topic_filter, page.position, limit=limit)
        found.extend(row.topic_name for row in page.rows)
    return found


def test_a_row_comes_back_as_it_went_in(store: RetainedStore) -> None:
    row = a_row("a/ü", b"\0\xff", 7, properties=b'{"content_type":"x"}', expires_at_ms=2**44)
    assert store.apply(row)
    assert store.get(0, "default", "a/ü") == row
    assert store.get(0, "default", "a") is None
    assert store.get(0, "other", "a/ü") is None
    assert store.page(0, "default", "a/+").rows == [row]
    assert store.count(0) == 1


def test_only_a_later_rank_replaces(store: RetainedStore) -> None:
    assert store.apply(a_row("a", b"5", 5))
    assert not store.apply(a_row("a", b"5 again", 5))
    assert not store.apply(a_row("a", b"4", 4))
    assert store.apply(a_row("a", b"6", 6))
    found = store.get(0, "default", "a")
    assert found is not None
    assert (found.payload, found.rank) == (b"6", 6)


@pytest.mark.parametrize("payload", [None, b""])
def test_a_message_without_payload_removes_and_nothing_older_returns(
    store: RetainedStore, payload: bytes | None
) -> None:
    store.apply(a_row("a", b"5", 5))
    assert not store.apply(a_row("a", payload, 4))
    assert store.get(0, "default", "a") is not None
    assert store.apply(a_row("a", payload, 6))
    assert store.get(0, "default", "a") is None
    assert store.count(0) == 0
    assert not store.apply(a_row("a", b"5", 5))
    assert store.load([a_row("a", b"6", 6), a_row("b", payload, 9)]) == 0
    assert store.count(0) == 0
    assert store.apply(a_row("a", b"7", 7))
    assert store.count(0) == 1


OPERATIONS = st.lists(
    st.tuples(st.sampled_from("ab"), st.none() | st.binary(max_size=1)), min_size=1, max_size=12
)


@given(OPERATIONS, st.randoms(use_true_random=False))
def test_whatever_the_order_the_last_rank_of_each_topic_stands(
    operations: list[tuple[str, bytes | None]], random: Any
) -> None:
    rows = [a_row(topic, payload, at) for at, (topic, payload) in enumerate(operations)]
    last = {row.topic_name: row for row in rows}
    store = RetainedStore(Database(None), ManualClock())
    shuffled = rows + rows[:3]
    random.shuffle(shuffled)
    some = random.randrange(len(shuffled))
    store.apply_all(shuffled[:some])
    for row in shuffled[some:]:
        store.apply(row)
    for topic, row in last.items():
        assert store.get(0, "default", topic) == (row if row.payload else None)
    assert store.count(0) == sum(bool(row.payload) for row in last.values())


@given(OPERATIONS, st.integers(0, 12), st.randoms(use_true_random=False))
def test_the_count_is_that_of_the_rows_after_every_change(
    operations: list[tuple[str, bytes | None]], loaded: int, random: Any
) -> None:
    database = Database(None)
    clock = ManualClock()
    store = RetainedStore(database, clock)

    def is_counted() -> bool:
        found = database.rows("SELECT topic, payload FROM retained")
        size = sum(len(topic.encode()) + len(payload) for topic, payload in found)
        return store.usage([0], "default") == (len(found), size) and store.count(0) == len(found)

    rows = [
        a_row(topic, payload, at, expires_at_ms=clock.now_ms() + 1 if payload else None)
        for at, (topic, payload) in enumerate(operations)
    ]
    random.shuffle(rows)
    store.load(rows[:loaded])
    assert is_counted()
    for row in rows:
        store.apply(row)
        assert is_counted()
    clock.advance(1)
    store.purge()
    assert store.count(0) == 0
    assert is_counted()


def test_a_bulk_load_does_not_put_back_what_is_older(store: RetainedStore) -> None:
    store.apply(a_row("a", b"live", 9))
    assert store.load(a_row(topic, b"snapshot", 5) for topic in "abc") == 2
    assert every_page(store, "#") == ["a", "b", "c"]
    found = store.get(0, "default", "a")
    assert found is not None
    assert found.payload == b"live"


def test_expired_messages_are_neither_returned_nor_listed(
    store: RetainedStore, clock: ManualClock
) -> None:
    now_ms = clock.now_ms()
    store.apply(a_row("a", expires_at_ms=now_ms + 1000))
    store.apply(a_row("b"))
    assert store.next_expiry_ms() == now_ms + 1000
    assert every_page(store, "+") == ["a", "b"]
    clock.advance(1)
    assert store.get(0, "default", "a") is None
    assert every_page(store, "+") == ["b"]
    assert store.count(0) == 2
    assert store.purge() == 1
    assert store.count(0) == 1
    assert store.next_expiry_ms() is None
    assert not store.apply(a_row("a", b"older, without expiry", 0))


def test_purging_is_bounded_and_forgets_old_removals(
    store: RetainedStore, clock: ManualClock
) -> None:
    for number in range(5):
        store.apply(a_row(f"e/{number}", expires_at_ms=clock.now_ms() + 1, rank=number))
        store.apply(a_row(f"r/{number}", None, rank=number))
    clock.advance(1)
    assert [store.purge(limit=3) for _ in range(3)] == [3, 2, 0]
    clock.advance(59)
    assert [store.purge(limit=3) for _ in range(3)] == [3, 2, 0]
    clock.advance(1)
    assert store.purge() == 5
    assert store.apply(a_row("r/0", b"again", 0))


def test_tenants_do_not_see_each_other(store: RetainedStore) -> None:
    store.apply(a_row("a", tenant="one"))
    store.apply(a_row("b", tenant="two"))
    assert every_page(store, "#", tenant="one") == ["a"]
    assert every_page(store, "#", tenant="two") == ["b"]
    assert every_page(store, "#", tenant="three") == []


LEVELS = st.sampled_from(["", "a", "b", "a!", "$a", "ä"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=3).map("/".join).filter(bool)
FILTERS = st.sampled_from(
    [
        "#",
        "+",
        "+/+",
        "a/#",
        "a/+",
        "+/a",
        "a",
        "a/b",
        "+/a/#",
        "$a/#",
        "$a/+",
        "a/+/b",
        "a!/#",
        "/+",
    ]
)


@given(st.sets(TOPICS, max_size=20), FILTERS, st.integers(1, 5))
def test_pages_together_hold_what_the_filter_matches_in_order(
    topics: set[str], topic_filter: str, limit: int
) -> None:
    store = RetainedStore(Database(None), ManualClock())
    store.load(a_row(topic) for topic in topics)
    expected = sorted(topic for topic in topics if filter_matches(topic_filter, topic))
    assert every_page(store, topic_filter, limit=limit) == expected


def test_a_long_scan_without_matches_is_cut_into_pages(store: RetainedStore) -> None:
    # Every topic has another prefix, so there is nothing to skip.
    store.load(a_row(f"p{number:06}/x") for number in range(5000))
    page = store.page(0, "default", "+/y")
    pages = 1
    while page.position is not None:
        assert page.rows == []
        page = store.page(0, "default", "+/y", page.position)
        pages += 1
    assert 5000 / MAX_LOOKED_AT < pages < 200


def test_a_scan_seeks_over_what_cannot_match(store: RetainedStore) -> None:
    store.load(a_row(f"p/{number:06}") for number in range(5000))
    store.load([a_row("q/y"), a_row("z")])
    page = store.page(0, "default", "+/y")
    assert [row.topic_name for row in page.rows] == ["q/y"]


def test_what_changes_behind_the_position_is_seen(store: RetainedStore) -> None:
    store.load(a_row(topic, rank=1) for topic in "abcd")
    page = store.page(0, "default", "#", limit=2)
    assert [row.topic_name for row in page.rows] == ["a", "b"]
    store.apply(a_row("aa", rank=2))
    store.apply(a_row("c", None, rank=2))
    store.apply(a_row("dd", rank=2))
    rest = store.page(0, "default", "#", page.position)
    assert [row.topic_name for row in rest.rows] == ["d", "dd"]
    assert rest.position is None


def test_shards_are_apart(store: RetainedStore) -> None:
    """Also one topic in two: that of another tenant's, say."""
    store.load(a_row(topic, shard=shard) for shard in (0, 1) for topic in "ab")
    store.apply(a_row("a", None, 1, shard=1))
    assert every_page(store, "#") == ["a", "b"]
    assert [row.topic_name for row in store.page(1, "default", "#").rows] == ["b"]
    assert (store.count(0), store.count(1), store.count(2)) == (2, 1, 0)
    assert store.get(1, "default", "a") is None


def test_a_shard_is_dropped_piece_by_piece_its_removals_too(store: RetainedStore) -> None:
    store.load(a_row(f"a/{number}", shard=1) for number in range(25))
    for number in range(15):
        store.apply(a_row(f"r/{number}", None, 5, shard=1))
    store.load([a_row("kept")])
    pieces = 0
    while store.drop(1, limit=10):
        pieces += 1
        assert store.count(1) == max(0, 25 - 10 * pieces)
    assert pieces == 3
    assert every_page(store, "#") == ["kept"]
    assert store.apply(a_row("r/0", b"of the next load", 4, shard=1))


def test_a_page_ends_with_the_message_that_reaches_its_bytes(store: RetainedStore) -> None:
    store.load(a_row(f"a/{number}", b"x" * 100) for number in range(10))
    page = store.page(0, "default", "#", max_bytes=250)
    assert [row.topic_name for row in page.rows] == ["a/0", "a/1", "a/2"]
    page = store.page(0, "default", "#", page.position, max_bytes=1)
    assert [row.topic_name for row in page.rows] == ["a/3"]
    assert page.position is not None
