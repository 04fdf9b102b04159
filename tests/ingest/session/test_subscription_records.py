from ingest.session.shard.subscription_records import (
    MOST_BYTES_IN_SESSION,
    MOST_IN_SESSION,
    MOVED_AT_ONCE,
    SubscriptionRecords,
)

FILTERS = [f"f{number}" for number in range(MOST_IN_SESSION + 3)]


def full() -> SubscriptionRecords:
    records = SubscriptionRecords()
    for topic_filter in FILTERS:
        records.add(topic_filter, can_have_record=True)
    return records


def test_a_session_holds_so_many_and_the_rest_have_records_of_their_own() -> None:
    assert list(full().own) == FILTERS[MOST_IN_SESSION:]


def test_a_session_holds_no_more_bytes_than_so_many() -> None:
    records = SubscriptionRecords()
    wide, narrow = "é" * (MOST_BYTES_IN_SESSION // 2 - 1), "ab"
    for topic_filter in (wide, "abc", narrow, "d"):
        records.add(topic_filter, can_have_record=True)
    assert list(records.own) == ["abc", "d"]


def test_while_an_older_gateway_lives_a_session_holds_all() -> None:
    records = SubscriptionRecords()
    for topic_filter in FILTERS:
        records.add(topic_filter, can_have_record=False)
    assert not records.own


def test_a_change_is_written_where_the_subscription_stands() -> None:
    records = full()
    records.change(FILTERS[-1])
    assert not records.is_session_changed
    assert records.take_changed() == [FILTERS[-1]]
    assert records.take_changed() == []
    records.change(FILTERS[0])
    assert records.is_session_changed
    assert records.take_changed() == []
    records.put_back([FILTERS[-1]])
    assert records.take_changed() == [FILTERS[-1]]


def test_what_is_removed_makes_room() -> None:
    records = full()
    records.remove(FILTERS[0])
    assert records.is_session_changed
    records.add("new", can_have_record=True)
    assert "new" not in records.own


def test_a_record_that_is_not_removed_yet_is_used_again() -> None:
    records = full()
    records.remove(FILTERS[-1])
    records.remove(FILTERS[0])
    records.add(FILTERS[-1], can_have_record=True)
    assert FILTERS[-1] in records.own
    assert records.take_changed() == [FILTERS[-1]]


def test_a_session_comes_back_as_it_stood() -> None:
    records = SubscriptionRecords()
    records.restore(FILTERS[:3], FILTERS[3:6], can_move=True)
    assert list(records.own) == FILTERS[3:6]
    assert records.take_changed() == []
    records.remove(FILTERS[3])
    assert records.take_changed() == [FILTERS[3]]


def test_what_stands_in_the_session_loses_a_record_of_its_own() -> None:
    records = SubscriptionRecords()
    records.restore(["a"], ["a", "b"], can_move=True)
    assert list(records.own) == ["b"]
    assert records.take_changed() == ["a"]


def test_a_large_session_of_an_earlier_release_moves_some_at_a_time() -> None:
    filters = [f"f{number}" for number in range(MOST_IN_SESSION + MOVED_AT_ONCE + 10)]
    records = SubscriptionRecords()
    records.restore(filters, (), can_move=True)
    assert records.take_changed() == list(records.own)
    assert len(records.own) == MOVED_AT_ONCE
    records = SubscriptionRecords()
    records.restore(filters, (), can_move=False)
    assert not records.own
