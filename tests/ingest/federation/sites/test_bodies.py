"""Each message comes whole on one path: which one, and when another is taken."""

from collections.abc import Callable

from ingest.federation.sites.streams.bodies import EARLIER, PATIENCE_SECONDS, STEADY_SECONDS, Bodies
from ingest.federation.sites.streams.streams import StreamKey

ORIGIN, FAST, SLOW, OTHER = 1, 2, 3, 4
STREAM = StreamKey(ORIGIN, 7, 0)


class Told:
    """What is acknowledged."""

    def __init__(self) -> None:
        self.packets: list[int] = []

    def by(self, packet_id: int) -> Callable[[], None]:
        return lambda: self.packets.append(packet_id)


def test_whose_copy_comes_late_is_spare() -> None:
    bodies = Bodies()
    bodies.brought(FAST, ORIGIN)
    assert bodies.repeated(SLOW, ORIGIN, 0.0)
    assert not bodies.repeated(SLOW, ORIGIN, 0.0)  # told already
    bodies.brought(SLOW, ORIGIN)  # was on its way
    assert not bodies.repeated(FAST, ORIGIN, 0.0)  # somebody has to send it whole


def test_what_a_neighbour_repeats_itself_makes_it_no_spare() -> None:
    bodies = Bodies()
    assert not bodies.repeated(FAST, ORIGIN, 0.0)
    bodies.brought(FAST, ORIGIN)
    assert not bodies.repeated(FAST, ORIGIN, 0.0)
    bodies.close(FAST)
    assert not bodies.repeated(SLOW, ORIGIN, 0.0)


def test_what_is_offered_is_acknowledged_when_it_is_had() -> None:
    bodies, told = Bodies(), Told()
    bodies.offer(SLOW, (STREAM, 5), told.by(11), 0.0)
    bodies.offer(OTHER, (STREAM, 5), told.by(12), 0.0)
    bodies.had((STREAM, 4))
    assert told.packets == []
    bodies.had((STREAM, 5))
    assert told.packets == [11, 12]
    assert bodies.waiting == 0
    assert bodies.overdue(PATIENCE_SECONDS + 1) == set()


def test_who_offers_what_does_not_come_is_to_send_whole_again() -> None:
    bodies, told = Bodies(), Told()
    bodies.brought(FAST, ORIGIN)
    assert bodies.repeated(SLOW, ORIGIN, 0.0)
    bodies.offer(SLOW, (STREAM, 5), told.by(11), 0.0)
    bodies.offer(SLOW, (STREAM, 6), told.by(12), 0.1)
    bodies.offer(OTHER, (STREAM, 5), told.by(13), 0.1)
    assert bodies.overdue(PATIENCE_SECONDS / 2) == set()
    assert bodies.overdue(PATIENCE_SECONDS) == {(SLOW, ORIGIN)}
    assert bodies.overdue(PATIENCE_SECONDS) == set()
    assert bodies.overdue(PATIENCE_SECONDS + 0.1) == {(OTHER, ORIGIN)}
    assert bodies.waiting == 0
    # Who had to be asked goes on sending whole: the other path may lack what this one has.
    assert not bodies.repeated(SLOW, ORIGIN, STEADY_SECONDS / 2)
    assert bodies.repeated(SLOW, ORIGIN, 2 * STEADY_SECONDS)


def test_when_one_goes_the_others_send_all_of_it_at_once() -> None:
    bodies, told = Bodies(), Told()
    bodies.brought(FAST, ORIGIN)
    assert bodies.repeated(SLOW, ORIGIN, 0.0)
    bodies.offer(SLOW, (STREAM, 5), told.by(11), 0.0)
    bodies.offer(FAST, (STREAM, 6), told.by(9), 0.0)
    assert bodies.close(FAST) == {SLOW}
    assert bodies.waiting == 0
    assert bodies.close(FAST) == set()


def offers(bodies: Bodies, count: int, now: float, first: int = 0) -> list[bool]:
    """Return after each of so many offers, before the messages, whether the path is the faster."""
    found = []
    for number in range(first, first + count):
        bodies.offer(SLOW, (STREAM, number), lambda: None, now)
        found.append(bodies.is_faster(SLOW, ORIGIN, now))
        bodies.had((STREAM, number))
        bodies.brought(FAST, ORIGIN)
    return found


def test_whose_offers_are_always_there_first_is_to_send_whole() -> None:
    bodies = Bodies()
    bodies.brought(FAST, ORIGIN)
    assert bodies.repeated(SLOW, ORIGIN, 0.0)
    assert offers(bodies, EARLIER, 0.0) == [False] * (EARLIER - 1) + [True]
    bodies.brought(SLOW, ORIGIN)
    assert bodies.repeated(FAST, ORIGIN, 0.0)  # now the other one is spare


def test_one_late_offer_begins_the_count_anew() -> None:
    bodies = Bodies()
    assert not any(offers(bodies, EARLIER - 1, 0.0))
    bodies.offered_late(SLOW, ORIGIN)
    assert not any(offers(bodies, EARLIER - 1, 0.0))


def test_paths_are_not_changed_again_and_again() -> None:
    bodies = Bodies()
    assert any(offers(bodies, EARLIER, 0.0))
    assert not any(offers(bodies, 3 * EARLIER, STEADY_SECONDS / 2))
    assert any(offers(bodies, EARLIER, 2 * STEADY_SECONDS))


def test_what_the_faster_path_has_offered_it_sends_whole() -> None:
    bodies, told = Bodies(), Told()
    for number in range(EARLIER):
        bodies.offer(SLOW, (STREAM, number), told.by(number), 0.0)
    assert bodies.is_faster(SLOW, ORIGIN, 0.0)
    assert bodies.waiting == 0
    bodies.had((STREAM, 0))
    assert told.packets == []
