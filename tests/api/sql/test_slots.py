"""Slots are shared by who asks for them: nobody who came first keeps others out."""

import threading
from collections.abc import Callable

import pytest

from api.sql.slots import RECENT_SECONDS, FairSlots

LONG = 30.0
"""Never waited for: somebody gives a slot back."""


class Now:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def take(slots: FairSlots, name: str) -> bool:
    return slots.acquire(name, 0.0)


def waiting(slots: FairSlots, count: int) -> None:
    """Wait until so many wait."""
    with slots._changed:
        assert slots._changed.wait_for(lambda: len(slots._waiting) == count, LONG)


@pytest.fixture
def begin() -> Callable[[FairSlots, str], threading.Thread]:
    def begun(slots: FairSlots, name: str) -> threading.Thread:
        known = len(slots._waiting)
        thread = threading.Thread(target=slots.acquire, args=(name, LONG), daemon=True)
        thread.start()
        with slots._changed:
            is_there = lambda: len(slots._waiting) > known or not thread.is_alive()  # noqa: E731
            assert slots._changed.wait_for(is_there, LONG)
        return thread

    return begun


def test_who_is_alone_has_all() -> None:
    slots = FairSlots(3)
    assert [take(slots, "acme") for _ in range(4)] == [True, True, True, False]
    slots.release("acme")
    assert take(slots, "acme")


def test_who_asked_of_late_has_a_part_that_nobody_else_is_given() -> None:
    now = Now()
    slots = FairSlots(2, now)
    assert take(slots, "acme")
    assert take(slots, "acme")
    assert not take(slots, "beta"), "both are taken by queries that run"
    slots.release("acme")
    assert not take(slots, "acme"), "its part is one by now"
    assert take(slots, "beta")
    slots.release("beta")
    now.seconds += RECENT_SECONDS + 1
    assert take(slots, "acme"), "nobody else asks any more"


@pytest.mark.parametrize(
    ("slots", "parts"),
    [(2, [1, 1]), (3, [2, 1]), (2, [1, 1, 0, 0, 0]), (16, [4, 3, 3, 3, 3]), (4, [4])],
)
def test_parts_are_even_and_leave_no_slot_idle(slots: int, parts: list[int]) -> None:
    fair = FairSlots(slots)
    names = [f"t{number}" for number in range(len(parts))]
    with fair._changed:
        fair._asked.update(dict.fromkeys(names, fair._now()))
    for name in names:
        while take(fair, name):
            pass
    assert [fair._held[name] for name in names] == parts


def test_a_slot_goes_to_whoever_was_served_longest_ago(
    begin: Callable[[FairSlots, str], threading.Thread],
) -> None:
    slots = FairSlots(1)
    assert take(slots, "acme")
    threads = [begin(slots, name) for name in ("acme", "acme", "beta")]
    slots.release("acme")
    threads[2].join(LONG)
    assert slots._held == {"beta": 1}, "although it came last"
    slots.release("beta")
    waiting(slots, 1)
    assert slots._held == {"acme": 1}
    slots.release("acme")
    for thread in threads:
        thread.join(LONG)


def test_who_gives_up_is_in_nobodys_way() -> None:
    slots = FairSlots(1)
    assert take(slots, "acme")
    for number in range(5):
        assert not take(slots, f"t{number}")
    assert not slots._waiting
    slots.release("acme")
    assert take(slots, "t0")
