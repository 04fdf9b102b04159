"""Stocks that gateways share, against a list of all that was let in; and how well they are held."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.session.limits.shared_counts import ON_THE_WAY_SECONDS, SharedCount

STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "give", "wait"]), st.integers(1, 5)), max_size=60
)


@given(st.integers(1, 30), STEPS)
def test_one_gateway_holds_its_limit_exactly(limit: int, steps: list[tuple[str, int]]) -> None:
    count, here, now = SharedCount(limit), 0, 0.0
    for what, amount in steps:
        if what == "take":
            fits = here + amount <= limit
            assert count.has_room(here, amount, now) is fits
            here += amount * fits
        elif what == "give":
            here = max(0, here - amount)
        else:
            now += amount / 2
            count.share(here, [], now)


@given(STEPS)
def test_what_is_on_the_way_is_what_a_list_of_it_says(steps: list[tuple[str, int]]) -> None:
    count, now = SharedCount(10), 0.25
    noted: list[tuple[float, int]] = []
    for what, amount in steps:
        if what == "wait":
            now += amount / 4
        else:
            count.let_in(amount, now)
            noted.append((now, amount))
        known = sum(one for at, one in noted if int(at) + ON_THE_WAY_SECONDS > now)
        assert count.on_the_way(now) == known


class Fleet:
    """Gateways that count what they let in, at once or after a lag; words come half a second late.

    What lags is kept by the gateway of its number, as retained messages are by owners of shards.
    """

    STEP = 1 / 16

    def __init__(
        self, limit: int, gateways: int, lag: float, seed: int, *, is_whole: bool = False
    ) -> None:
        nothing = [0] * (gateways - 1)
        self.counts = [SharedCount(limit, 0, nothing, is_whole=is_whole) for _ in range(gateways)]
        self.kept = [0] * gateways
        self.said = [0.0] * gateways
        self.coming: list[tuple[float, int]] = []
        self.lag, self.now, self.steps, self.most = lag, 0.0, 0, 0
        self.random = random.Random(seed)

    @property
    def total(self) -> int:
        return sum(self.kept) + len(self.coming)

    def run(self, seconds: float, offered: list[int]) -> None:
        """Have clients ask for so much a step at each gateway."""
        for _ in range(int(seconds / self.STEP)):
            self.now += self.STEP
            self.steps += 1
            for i, count in enumerate(self.counts):
                for _ in range(offered[i]):
                    self._ask(i, count)
            for due, owner in self.coming:
                self.kept[owner] += due <= self.now
            self.coming = [one for one in self.coming if one[0] > self.now]
            if self.steps % 8 == 0:
                self._tell()
            self.most = max(self.most, self.total)

    def _ask(self, i: int, count: SharedCount) -> None:
        if not count.has_room(self.kept[i], 1, self.now):
            return
        if self.lag:
            count.let_in(1, self.now)
            owner = self.random.randrange(len(self.counts))
            self.coming.append((self.now + self.lag, owner))
        else:
            self.kept[i] += 1

    def _tell(self) -> None:
        heard, self.said = self.said, []
        for i, count in enumerate(self.counts):
            count.share(self.kept[i], heard[:i] + heard[i + 1 :], self.now)
            self.said.append(self.kept[i] + count.on_the_way(self.now))


@pytest.mark.parametrize("lag", [0.0, 1.5])
@pytest.mark.parametrize("gateways", [1, 2, 3, 8])
@pytest.mark.parametrize("rush", [1, 5, 100])
def test_all_gateways_hold_a_limit_within_a_tenth_and_come_to_it(
    lag: float, gateways: int, rush: int
) -> None:
    limit = 400
    fleet = Fleet(limit, gateways, lag, seed=rush)
    fleet.run(60, [rush] * gateways)
    assert fleet.most <= limit * 1.1
    assert fleet.total >= limit * 0.9


def test_one_of_three_gateways_has_what_the_others_do_not_want() -> None:
    fleet = Fleet(400, 3, 0.0, seed=1)
    fleet.run(20, [50, 0, 0])
    assert 360 <= fleet.total <= 400


def test_what_is_given_back_at_one_gateway_is_had_at_another() -> None:
    fleet = Fleet(300, 2, 0.0, seed=1)
    fleet.run(10, [50, 0])
    fleet.kept[0] = 0
    fleet.run(10, [0, 50])
    assert 270 <= fleet.kept[1] <= 300


@pytest.mark.parametrize("gateways", [1, 2, 3, 8])
def test_all_of_a_small_limit_is_had_at_once_at_one_gateway(gateways: int) -> None:
    fleet = Fleet(5, gateways, 0.0, seed=1, is_whole=True)
    fleet.run(Fleet.STEP, [9] + [0] * (gateways - 1))
    assert fleet.total == 5
    fleet.run(1, [0] * gateways)
    fleet.run(10, [9] * gateways)
    assert fleet.most == 5, "the others have heard of it"


def test_a_small_limit_is_exceeded_within_a_second_alone() -> None:
    fleet = Fleet(5, 3, 0.0, seed=1, is_whole=True)
    fleet.run(10, [9, 9, 9])
    assert fleet.most == fleet.total == 15, "each before it heard of the others"
    fleet.kept = [2, 1, 1]
    fleet.run(1, [0, 0, 0])
    fleet.run(10, [9, 0, 0])
    assert fleet.kept == [3, 1, 1]


def test_a_smaller_limit_takes_nothing_away() -> None:
    count = SharedCount(10)
    count.limit = 3
    count.share(7, [], 0.0)
    assert not count.has_room(7, 1, 0.0)
    assert count.has_room(2, 1, 0.0)
