import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.session.placement import place

GATEWAYS = st.lists(st.text("abc0123", min_size=1), min_size=1, max_size=6, unique=True)


@given(st.integers(1, 32), GATEWAYS)
def test_no_gateway_has_more_than_its_even_part(shards: int, gateways: list[str]) -> None:
    owners = [one.owner for one in place(shards, gateways)]
    most = -(-shards // len(gateways))
    assert len(owners) == shards
    assert all(owners.count(name) <= most for name in gateways)


@given(st.integers(1, 32), GATEWAYS)
def test_a_standby_is_another_gateway(shards: int, gateways: list[str]) -> None:
    for owner, standby in place(shards, gateways):
        assert standby != owner
        assert (standby is None) is (len(gateways) == 1)


@given(st.data(), st.integers(1, 32), GATEWAYS)
def test_the_order_of_the_gateways_says_nothing(
    data: st.DataObject, shards: int, gateways: list[str]
) -> None:
    assert place(shards, data.draw(st.permutations(gateways))) == place(shards, gateways)


def test_one_gateway_owns_everything() -> None:
    assert place(3, ["a"]) == [("a", None)] * 3


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_few_shards_move_when_a_gateway_comes_or_goes(count: int) -> None:
    shards = 64
    before = place(shards, [f"g{n}" for n in range(count)])
    after = place(shards, [f"g{n}" for n in range(count + 1)])
    moved = sum(one.owner != other.owner for one, other in zip(before, after, strict=True))
    # The new one gets its part; the bound on each one's part moves some more.
    assert moved <= 2 * -(-shards // (count + 1))
