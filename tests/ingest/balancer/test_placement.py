from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.balancer.placement import bounds_of, bucket_of, place_buckets
from ingest.session.placement import place
from mqlake.records.shards import shard_of

SHARDS = 16
BUCKETS = 256
EVEN = [1.0] * BUCKETS


def even(*nodes: str) -> dict[str, float]:
    return dict.fromkeys(nodes, 100.0)


@given(st.text(max_size=40), st.text(min_size=1, max_size=80))
def test_the_shard_of_a_session_follows_from_its_bucket(tenant: str, client_id: str) -> None:
    bucket = bucket_of(tenant, client_id, BUCKETS)
    assert bucket % SHARDS == shard_of(tenant, client_id, SHARDS)


def test_with_even_load_every_client_is_where_its_session_is_kept() -> None:
    nodes = even("a", "b", "c")
    owners = [one.owner for one in place(SHARDS, nodes)]
    placed = place_buckets(SHARDS, EVEN, nodes, slack=0.25)
    assert placed == [owners[bucket % SHARDS] for bucket in range(BUCKETS)]


@settings(max_examples=30)
@given(
    st.integers(),
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 100), min_size=1),
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 100), min_size=1),
)
def test_no_node_has_more_than_its_bound_and_one_bucket(
    seed: int, weights: dict[str, int], changed: dict[str, int]
) -> None:
    rng = Random(seed)
    loads = [rng.random() for _ in range(BUCKETS)]
    placed: list[str] = []
    for now in (weights, changed):
        placed = place_buckets(SHARDS, loads, now, slack=0.25, before=placed)
        bounds = bounds_of(sum(loads), now, 0.25)
        given_to = dict.fromkeys(now, 0.0)
        for load, node in zip(loads, placed, strict=True):
            given_to[node] += load
        assert given_to.keys() == now.keys()
        for node, load in given_to.items():
            assert load <= bounds[node] + max(loads) + 1e-6


def test_when_a_node_goes_only_its_clients_move() -> None:
    before = place_buckets(SHARDS, EVEN, even("a", "b", "c"), slack=0.25)
    after = place_buckets(SHARDS, EVEN, even("a", "b"), slack=0.25, before=before)
    assert all(old == new for old, new in zip(before, after, strict=True) if old != "c")
    assert "c" not in after


def test_when_it_is_back_all_is_as_it_was() -> None:
    first = place_buckets(SHARDS, EVEN, even("a", "b", "c"), slack=0.25)
    without = place_buckets(SHARDS, EVEN, even("a", "b"), slack=0.25, before=first)
    assert place_buckets(SHARDS, EVEN, even("a", "b", "c"), slack=0.25, before=without) == first


def test_a_node_that_has_little_free_gets_little() -> None:
    weights = {"a": 10.0, "b": 90.0, "c": 100.0}
    placed = Counter(place_buckets(SHARDS, EVEN, weights, slack=0.25))
    assert placed["a"] <= BUCKETS * 1.25 * 10 / 200


def test_few_with_much_load_move_for_a_bound_not_many_with_little() -> None:
    loads = [20.0 if bucket % 8 == 0 else 1.0 for bucket in range(BUCKETS)]
    before = place_buckets(SHARDS, loads, {"a": 100.0, "b": 100.0}, slack=0.1)
    after = place_buckets(SHARDS, loads, {"a": 50.0, "b": 100.0}, slack=0.1, before=before)
    moved = [
        loads[bucket]
        for bucket, (old, new) in enumerate(zip(before, after, strict=True))
        if old != new
    ]
    assert moved
    assert set(moved) == {20.0}


def test_a_hot_bucket_is_alone_but_goes_somewhere() -> None:
    loads = [1000.0, *EVEN[1:]]
    nodes = even("a", "b", "c")
    placed = place_buckets(SHARDS, loads, nodes, slack=0.0)
    assert Counter(placed)[placed[0]] == 1


def test_buckets_are_a_multiple_of_shards() -> None:
    with pytest.raises(ValueError, match="100 buckets are no multiple of 16 shards"):
        place_buckets(16, [1.0] * 100, even("a"), slack=0.25)
