"""Which gateway, and which of its members, gets a message of a share group."""

from collections import Counter

import pytest

from mqlake.errors import InvalidRecord
from mqlake.topics.sharing import (
    ShareStrategy,
    ShareWeight,
    choose_gateway,
    choose_member,
    decode_weight,
    encode_weight,
)

GROUP = "$share/g/plant/#"


def chosen(weights: dict[str, ShareWeight], count: int = 4_000) -> Counter[str]:
    """Return how many messages each gateway gets, each of another topic and publisher."""
    return Counter(
        choose_gateway(GROUP, weights, f"plant/{number}", f"c{number}", number % 4, number // 4)
        for number in range(count)
    )


@pytest.mark.parametrize(
    "weight", [ShareWeight(3), ShareWeight(1, ShareStrategy.HASH_TOPIC, 1_763_719_200_000)]
)
def test_weight_is_read_as_it_was_written(weight: ShareWeight) -> None:
    assert decode_weight(encode_weight(weight)) == weight


def test_number_alone_is_a_count_of_members() -> None:
    assert decode_weight(b"7") == ShareWeight(7)


@pytest.mark.parametrize("value", [b"", b"x", b"1 loudest 5", b"1 sticky", b"\xff"])
def test_weight_of_another_form_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRecord, match="value of a shared route"):
        decode_weight(value)


@pytest.mark.parametrize(
    "strategy",
    [
        ShareStrategy.ROUND_ROBIN,
        ShareStrategy.RANDOM,
        ShareStrategy.HASH_TOPIC,
        ShareStrategy.HASH_CLIENT_ID,
    ],
)
def test_gateways_get_messages_in_proportion_to_their_members(strategy: ShareStrategy) -> None:
    weights = {"a": ShareWeight(1, strategy), "b": ShareWeight(3, strategy)}
    found = chosen(weights)
    assert found["a"] + found["b"] == 4_000
    assert 850 < found["a"] < 1_150


def test_sticky_gives_all_to_the_gateway_that_joined_first() -> None:
    weights = {
        "a": ShareWeight(5, ShareStrategy.ROUND_ROBIN, since_ms=2),
        "b": ShareWeight(1, ShareStrategy.STICKY, since_ms=1),
    }
    assert set(chosen(weights)) == {"b"}


def test_way_to_another_site_counts_while_no_gateway_here_has_a_member() -> None:
    there = ShareWeight(9, ShareStrategy.LAST_RESORT)
    assert set(chosen({"federation-1-2": there, "a": ShareWeight(1)})) == {"a"}
    assert set(chosen({"federation-1-2": there})) == {"federation-1-2"}


def test_same_topic_or_publisher_stays_at_one_gateway() -> None:
    for strategy in (ShareStrategy.HASH_TOPIC, ShareStrategy.HASH_CLIENT_ID):
        weights = {name: ShareWeight(1, strategy) for name in "abc"}
        found = {choose_gateway(GROUP, weights, "t", "c", 0, offset) for offset in range(50)}
        assert len(found) == 1


def test_group_without_members_is_an_error() -> None:
    with pytest.raises(ValueError, match="without members"):
        choose_gateway(GROUP, {"a": ShareWeight(0, ShareStrategy.ROUND_ROBIN)}, "t", "c", 0, 0)


@pytest.mark.parametrize("strategy", [ShareStrategy.HASH_TOPIC, ShareStrategy.HASH_CLIENT_ID])
def test_member_of_a_gateway_follows_from_topic_or_publisher(strategy: ShareStrategy) -> None:
    found = Counter(choose_member(strategy, f"t{n}", f"c{n}", 4) for n in range(4_000))
    assert set(found) == {0, 1, 2, 3}
    assert min(found.values()) > 850
    by_topic = {choose_member(ShareStrategy.HASH_TOPIC, "t", f"c{n}", 4) for n in range(20)}
    assert len(by_topic) == 1
