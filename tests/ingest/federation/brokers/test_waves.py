"""A wave asks everybody, ends over any redundant paths, and its end tells the truth."""

from collections import deque
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ingest.federation.brokers.waves import OWN, WaveEnded, Waves
from ingest.federation.envelope import ChainKey, SiteMessage
from ingest.federation.packets import Want, Wave

KEY = ChainKey(1, 1, "a")


def want(wave: Wave, after: int = 0, upto: int = 5) -> Want:
    return Want(KEY, after, upto, 0, wave)


def message(sequence: int, key: ChainKey = KEY) -> SiteMessage:
    return SiteMessage(key, sequence, sequence - 1, 0, 0, b"", 1, False)


def run(edges: set[tuple[int, int]], starts: list[int], holders: set[int], seed: int) -> set[int]:
    """Return the sites whose waves have ended; links keep order, else words come as they like."""
    random = Random(seed)
    near: dict[int, set[int]] = {}
    for a, b in edges:
        near.setdefault(a, set()).add(b)
        near.setdefault(b, set()).add(a)
    sites = {site: Waves(seconds=10.0, most=100) for site in near}
    links: dict[tuple[int, int], deque[tuple[Wave, bool]]] = {}
    ended: set[int] = set()

    def say(origin: int, to: int, wave: Wave, *, is_want: bool) -> None:
        links.setdefault((origin, to), deque()).append((wave, is_want))

    def conclude(site: int, end: WaveEnded | None, wave: Wave) -> None:
        if end is None:
            return
        if end.asker == OWN:
            ended.add(site)
        else:
            say(site, end.asker, wave, is_want=False)

    def join(site: int, asker: int, wave: Wave) -> None:
        asked = near[site] - {asker}
        for one in asked:
            say(site, one, wave, is_want=True)
        conclude(site, sites[site].join(wave, asker, want(wave), asked, 0.0), wave)

    for number, site in enumerate(starts):
        join(site, OWN, Wave(site, 1, number))
    words = 0
    while links:
        words += 1
        assert words <= 4 * len(edges) * len(starts)
        pair = random.choice(sorted(links))
        wave, is_want = links[pair].popleft()
        if not links[pair]:
            del links[pair]
        origin, site = pair
        if not is_want:
            conclude(site, sites[site].answer(wave, origin)[1], wave)
        elif site not in holders:
            if wave not in sites[site]:
                join(site, origin, wave)
            else:
                was_awaited, end = sites[site].answer(wave, origin)
                assert was_awaited
                conclude(site, end, wave)
    return ended


@given(st.integers(2, 9), st.integers(0, 12), st.integers(0, 3), st.integers(0, 2**32))
def test_a_wave_ends_where_it_began_just_when_nobody_has_it(
    count: int, more: int, having: int, seed: int
) -> None:
    random = Random(seed)
    edges = {(random.randrange(b), b) for b in range(1, count)}
    for _ in range(more):
        a, b = sorted(random.sample(range(count), 2))
        edges.add((a, b))
    holders = set(random.sample(range(count), min(having, count - 1)))
    starts = [site for site in range(count) if site not in holders][:2]
    assert run(edges, starts, holders, seed) == (set() if holders else set(starts))


def test_what_is_wanted_by_a_wave_goes_to_who_asked() -> None:
    waves = Waves(seconds=10.0, most=100)
    waves.join(Wave(7, 1, 1), 2, want(Wave(7, 1, 1), 3, 5), {4}, 0.0)
    waves.join(Wave(9, 1, 1), OWN, want(Wave(9, 1, 1)), {4}, 0.0)
    assert waves.askers(message(3)) == set()
    assert waves.askers(message(5)) == {2}
    assert waves.askers(message(6)) == set()
    assert waves.askers(message(5, ChainKey(1, 1, "b"))) == set()


def test_waves_are_forgotten_in_time_and_when_they_are_too_many() -> None:
    waves = Waves(seconds=10.0, most=2)
    for number in range(3):
        one = Wave(7, 1, number)
        waves.join(one, 2, want(one), {4}, float(number))
    assert [Wave(7, 1, number) in waves for number in range(3)] == [False, True, True]
    waves.expire(11.5)
    assert len(waves) == 1
    assert waves.answer(Wave(7, 1, 1), 4) == (False, None)
    assert waves.askers(message(5)) == {2}
    waves.expire(12.5)
    assert waves.askers(message(5)) == set()
