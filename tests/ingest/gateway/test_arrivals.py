"""Who gives way when there is no room for clients that have not logged in."""

from collections import Counter
from random import Random

import pytest

from ingest.gateway.listeners.arrivals import (
    HANDSHAKE_BYTES,
    MOST_BYTES,
    MOST_USELESS,
    PLACE_BYTES,
    REASON,
    Arrivals,
)
from ingest.protocol.connection import MAX_PACKET_BYTES_BEFORE_LOGIN
from tests.cases import case
from tests.memory import kept_bytes

LISTENER = "tcp"


class One:
    """A connection that notes whether it had to give way."""

    def __init__(self, arrivals: Arrivals, address: str, listener: str = LISTENER) -> None:
        self.is_here = True
        arrivals.enter(self, address, listener)

    def give_way(self, reason: str) -> None:
        assert reason == REASON
        self.is_here = False


def enter(arrivals: Arrivals, address: str, count: int = 1, listener: str = LISTENER) -> list[One]:
    return [One(arrivals, address, listener) for _ in range(count)]


def are_here(ones: list[One]) -> list[bool]:
    return [one.is_here for one in ones]


@pytest.fixture
def arrivals() -> Arrivals:
    """With room for ten."""
    return Arrivals(10 * PLACE_BYTES)


def test_the_oldest_of_the_address_that_has_most_gives_way(arrivals: Arrivals) -> None:
    first = enter(arrivals, "192.0.2.1")
    crowd = enter(arrivals, "192.0.2.2", 6)
    others = enter(arrivals, "192.0.2.3", 3)
    assert all(are_here(first + crowd + others))
    newcomers = enter(arrivals, "192.0.2.4", 3)
    assert are_here(crowd) == [False] * 3 + [True] * 3
    assert all(are_here(first + others + newcomers))
    assert len(arrivals) == 10


def test_of_those_that_have_the_same_it_is_the_oldest(arrivals: Arrivals) -> None:
    ones = [enter(arrivals, f"192.0.2.{number}")[0] for number in range(10)]
    enter(arrivals, "192.0.2.10", 1)
    assert are_here(ones) == [False] + [True] * 9


def test_who_comes_with_a_crowd_gives_way_to_its_own(arrivals: Arrivals) -> None:
    other = enter(arrivals, "192.0.2.1")
    crowd = enter(arrivals, "192.0.2.2", 100)
    assert all(are_here(other))
    assert are_here(crowd) == [False] * 91 + [True] * 9


def test_addresses_of_one_customer_count_as_one(arrivals: Arrivals) -> None:
    crowd = [enter(arrivals, f"2001:db8::{number:x}")[0] for number in range(6)]
    others = enter(arrivals, "2001:db8:0:1::1", 4)
    newcomer = enter(arrivals, "192.0.2.1")
    assert are_here(crowd) == [False] + [True] * 5
    assert all(are_here(others + newcomer))


def test_bytes_of_packets_that_are_not_whole_count(arrivals: Arrivals) -> None:
    many = enter(arrivals, "192.0.2.1", 5)
    (heavy,) = enter(arrivals, "192.0.2.2")
    arrivals.hold(heavy, 4 * PLACE_BYTES)
    assert arrivals.bytes == 10 * PLACE_BYTES
    arrivals.hold(heavy, 3 * PLACE_BYTES)
    assert arrivals.bytes == 10 * PLACE_BYTES, "what was read waits for its answer"
    arrivals.hold(many[0], 1)
    assert are_here(many) == [False] + [True] * 4, "the five have more than the one"
    arrivals.hold(heavy, 5 * PLACE_BYTES)
    assert heavy.is_here
    arrivals.hold(heavy, 5 * PLACE_BYTES + 1)
    assert not heavy.is_here
    assert arrivals.bytes == 4 * PLACE_BYTES


def test_who_has_left_counts_no_more_and_need_not_give_way(arrivals: Arrivals) -> None:
    ones = enter(arrivals, "192.0.2.1", 10)
    for one in ones:
        arrivals.hold(one, 0)
        arrivals.leave(one)
        arrivals.leave(one)
        arrivals.hold(one, 10**9)
    assert (len(arrivals), arrivals.bytes) == (0, 0)
    enter(arrivals, "192.0.2.1", 11)
    assert all(are_here(ones))


def test_one_may_be_asked_to_give_way(arrivals: Arrivals) -> None:
    assert not arrivals.end_one()
    first = enter(arrivals, "192.0.2.1", 2, "ws")
    second = enter(arrivals, "192.0.2.2", 3, "tcp")
    assert not arrivals.end_one(listener="tls")
    assert arrivals.end_one(listener="ws")
    assert are_here(first) == [False, True]
    assert not arrivals.end_one(first[1], "ws")
    assert arrivals.end_one(second[2])
    assert are_here(second) == [False, True, True]


def test_the_same_gives_way_as_by_looking_at_all_of_them() -> None:
    random = Random(7)
    arrivals = Arrivals(40 * PLACE_BYTES)
    here: dict[One, tuple[str, int]] = {}  # oldest first
    ended = 0
    for step in range(20_000):
        ones = list(here)
        act = random.random()
        if act < 0.4 or not ones:
            address = f"192.0.2.{random.randrange(12)}"
            one = One(arrivals, address)
            here[one] = address, PLACE_BYTES
        elif act < 0.7:
            one = random.choice(ones)
            address, size = here[one]
            held = random.randrange(4 * PLACE_BYTES)
            arrivals.hold(one, held)
            here[one] = address, max(size, PLACE_BYTES + held)
        else:
            one = random.choice(ones)
            arrivals.leave(one)
            del here[one]
        while sum(size for _, size in here.values()) > 40 * PLACE_BYTES:
            taken: Counter[str] = Counter()
            for address, size in here.values():
                taken[address] += size
            first = next(
                one for one, (address, _) in here.items() if taken[address] == max(taken.values())
            )
            with case(f"step {step}"):
                assert not first.is_here
            del here[first]
            ended += 1
        with case(f"step {step}"):
            assert all(one.is_here for one in here)
            assert arrivals.bytes == sum(size for _, size in here.values())
    assert ended > 1_000


def test_clients_that_come_and_go_leave_nothing_behind() -> None:
    arrivals = Arrivals()

    def come_and_go() -> None:
        for number in range(10 * MOST_USELESS):
            (one,) = enter(arrivals, f"198.51.{number % 250}.{number % 251}")
            arrivals.leave(one)

    assert kept_bytes(come_and_go) < MOST_USELESS * 300


@pytest.mark.promise
def test_what_strangers_take_is_bounded_and_enough_for_a_crowd() -> None:
    arrivals = Arrivals()
    for number in range(3 * MOST_BYTES // MAX_PACKET_BYTES_BEFORE_LOGIN):
        (one,) = enter(arrivals, f"198.51.{number % 100}.1")
        arrivals.hold(one, MAX_PACKET_BYTES_BEFORE_LOGIN)
        assert arrivals.bytes <= MOST_BYTES
    assert MOST_BYTES // PLACE_BYTES >= 8_000
    assert MOST_BYTES // HANDSHAKE_BYTES >= 1_000
