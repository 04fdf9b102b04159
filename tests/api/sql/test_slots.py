"""Slots are shared by who asks for them: nobody who came first keeps others out."""

import queue
import threading

import pytest

from api.sql.slots import MOST_WAITING, MOST_WAITING_OF_ONE, RECENT_SECONDS, FairSlots

LONG = 30.0
"""Never waited for: somebody gives a slot back."""


class Now:
    """A clock that a test turns, and that slots look at whenever somebody asks for one."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.looked = threading.Event()

    def __call__(self) -> float:
        self.looked.set()
        return self.seconds


def take(slots: FairSlots, name: str) -> bool:
    return slots.acquire(name, 0.0)


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
    for name in names:  # all have asked of late
        assert take(fair, name)
        fair.release(name)
    taken = [sum(take(fair, name) for _ in range(slots + 1)) for name in names]
    assert taken == parts


def test_a_slot_goes_to_whoever_was_served_longest_ago() -> None:
    now = Now()
    slots, served = FairSlots(1, now), queue.SimpleQueue[str]()
    assert take(slots, "acme")

    def ask(name: str) -> None:
        if slots.acquire(name, LONG):
            served.put(name)

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("acme", "acme", "beta")]
    for thread in threads:
        now.looked.clear()
        thread.start()
        assert now.looked.wait(LONG)  # whoever asks now, or gives a slot back, comes after it
    slots.release("acme")
    assert served.get(timeout=LONG) == "beta", "although it came last"
    slots.release("beta")
    for _ in range(2):
        assert served.get(timeout=LONG) == "acme"
        assert served.empty()
        slots.release("acme")
    for thread in threads:
        thread.join(LONG)


def test_who_gives_up_is_in_nobodys_way() -> None:
    slots = FairSlots(1)
    assert take(slots, "acme")
    for number in range(5):
        assert not take(slots, f"t{number}")
    slots.release("acme")
    assert take(slots, "t4"), "though others had come before it"


def test_so_many_may_wait_and_no_more() -> None:
    now = Now()
    slots = FairSlots(1, now)
    assert take(slots, "acme")
    served: queue.SimpleQueue[str] = queue.SimpleQueue()

    def wait(name: str) -> None:
        assert slots.acquire(name, LONG)
        served.put(name)

    waiting: list[threading.Thread] = []
    tenants = MOST_WAITING // MOST_WAITING_OF_ONE
    for number in range(MOST_WAITING):
        now.looked.clear()
        waiting.append(threading.Thread(target=wait, args=(f"t{number % tenants}",)))
        waiting[-1].start()
        assert now.looked.wait(LONG)
    assert not slots.acquire("t0", LONG), "ten of one wait"
    assert not slots.acquire("another", LONG), "forty of all wait"
    slots.release("acme")
    for _ in range(MOST_WAITING):
        slots.release(served.get(timeout=LONG))
    for thread in waiting:
        thread.join(LONG)
