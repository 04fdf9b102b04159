"""Parts of a limit, against pouring it out drop by drop; and what clients get of them."""

import heapq
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.session.limits.shared_rates import RESERVED, SharedRate, allotment

LIMITS = st.integers(1, 10_000).map(float)
PARTS = st.lists(st.floats(0, 1.5), min_size=1, max_size=9)


def poured(limit: float, wants: list[float], drops: int = 4000) -> list[float]:
    """Pour a limit out: each drop goes evenly to all who still want some, at last to all."""
    parts = [limit * RESERVED / len(wants)] * len(wants)
    got = [0.0] * len(wants)
    drop = limit * (1 - RESERVED) / drops
    for _ in range(drops):
        thirsty = [i for i, want in enumerate(wants) if got[i] < want - drop / 2]
        for i in thirsty or range(len(wants)):
            amount = drop / len(thirsty or wants)
            got[i] += amount if thirsty else 0.0
            parts[i] += amount
    return parts


@given(LIMITS, PARTS)
def test_parts_are_as_if_they_were_poured(limit: float, shares: list[float]) -> None:
    wants = [share * limit for share in shares]
    for i, part in enumerate(poured(limit, wants)):
        found = allotment(limit, wants[i], wants[:i] + wants[i + 1 :])
        assert found == pytest.approx(part, abs=limit / 100)


@given(LIMITS, PARTS)
def test_all_parts_make_the_limit(limit: float, shares: list[float]) -> None:
    wants = [share * limit for share in shares]
    parts = [allotment(limit, one, wants[:i] + wants[i + 1 :]) for i, one in enumerate(wants)]
    assert sum(parts) == pytest.approx(limit)
    for (one, part), (other, more) in pairwise(sorted(zip(wants, parts, strict=True))):
        assert one == other or part <= more + 1e-6, "who wants more does not get less"


def test_one_gateway_has_all_of_it() -> None:
    assert allotment(100.0, 0.0, []) == pytest.approx(100.0)


class Fleet:
    """Gateways whose words come half a second late, each read as fast as it may be."""

    STEP = 1 / 64

    def __init__(self, limit: float, gateways: int) -> None:
        self.rates = [SharedRate(limit) for _ in range(gateways)]
        self.said = [0.0] * gateways
        self.until = [0.0] * gateways
        self.owed = [0.0] * gateways
        self.now = 0.0
        self.steps = 0

    def run(self, seconds: float, offered: list[float]) -> list[float]:
        """Have clients offer so much a second at each gateway; return what was taken of each."""
        taken = [0.0] * len(self.rates)
        for _ in range(int(seconds / self.STEP)):
            self.now += self.STEP
            self.steps += 1
            for i, rate in enumerate(self.rates):
                self.owed[i] = min(self.owed[i] + offered[i] * self.STEP, offered[i])
                while self.owed[i] >= 1 and self.until[i] <= self.now:
                    self.owed[i] -= 1
                    taken[i] += 1
                    self.until[i] = self.now + rate.take(1, self.now)
            if self.steps % 32 == 0:
                before, self.said = self.said, []
                for i, rate in enumerate(self.rates):
                    rate.measure(0.5)
                    rate.share(before[:i] + before[i + 1 :], self.now)
                    self.said.append(rate.wanted)
        return taken


@pytest.mark.parametrize(
    "offered",
    [
        [1000.0] * 3,
        [1000.0, 0.0, 0.0],
        [1000.0, 60.0, 20.0],
        [90.0, 90.0, 90.0],
        [300.0, 0.0, 60.0],
        [1000.0],
        [1000.0] * 8,
        [150.0, 40.0],
    ],
)
def test_all_gateways_together_keep_to_the_limit_within_a_tenth(offered: list[float]) -> None:
    limit = 200.0
    fleet = Fleet(limit, len(offered))
    fleet.run(4, offered)
    rate = sum(fleet.run(20, offered)) / 20
    wanted = min(limit, sum(offered))
    assert wanted * 0.9 <= rate <= limit * 1.1


def test_what_moves_to_another_gateway_is_taken_there_within_seconds() -> None:
    fleet = Fleet(200.0, 3)
    fleet.run(5, [1000.0, 0.0, 0.0])
    fleet.run(2, [0.0, 1000.0, 0.0])
    there = fleet.run(10, [0.0, 1000.0, 0.0])[1] / 10
    assert there >= 180.0


def test_a_changing_load_is_held_within_a_tenth() -> None:
    limit, fleet, taken = 200.0, Fleet(200.0, 3), 0.0
    for second in range(40):
        offered = [0.0, 0.0, 0.0]
        offered[second // 5 % 3] = 1000.0
        offered[(second // 3 + 1) % 3] += 100.0
        taken += sum(fleet.run(1, offered))
    assert taken / 40 <= limit * 1.1


def test_another_limit_counts_from_the_next_word_on() -> None:
    rate = SharedRate(10.0)
    rate.limit = 1000.0
    rate.measure(0.5)
    rate.share([], 0.0)
    assert sum(not rate.take(1, 1.0) for _ in range(900)) == 900


def test_what_is_owed_is_no_new_want() -> None:
    rate = SharedRate(10.0)
    rate.take(1000, 0.0)
    for _ in range(30):
        rate.measure(0.5)
        rate.share([], 0.0)
    assert rate.wanted < 0.01


@pytest.mark.parametrize("clients", [1, 10, 100, 1000])
def test_who_shares_a_rate_keeps_to_it_however_many_they_are(clients: int) -> None:
    """All of them publish whenever they may. What was there at first is a second's worth."""
    rate, taken = SharedRate(100.0), 0
    due = [(client / 10_000, client) for client in range(clients)]
    while due[0][0] < 30.0:
        now, client = heapq.heappop(due)
        taken += now >= 5.0 + clients / 100
        heapq.heappush(due, (now + max(rate.take(1, now), 1e-4), client))
    assert taken / (25.0 - clients / 100) == pytest.approx(100.0, rel=0.02)
