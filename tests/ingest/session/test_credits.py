"""Who gets credits when, against handing them out one tick after the other."""

from collections import deque
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.session.limits.credits import (
    BEGINS_AT,
    GRANT,
    LEAST_PER_SECOND,
    MOST_PER_SECOND,
    NOTHING_AT,
    CreditRate,
    Credits,
)


class SlowCredits:
    """The same in the plainest way, but for who takes publishes less than its part."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.is_stopped = False
        self.queue: deque[str] = deque()
        self.room = rate / 200
        self.unused_seconds = 0.0

    def ask(self, client: str) -> int:
        if not self.is_stopped and not self.queue and self.room >= GRANT:
            self.room -= GRANT
            return GRANT
        self.queue.append(client)
        return 0

    def take(self) -> list[str]:
        most = self.rate / 200
        if most < GRANT:
            most = GRANT
        self.room += self.unused_seconds * self.rate
        self.unused_seconds = 0.0
        if self.room > most:
            self.room = most
        named = []
        for _ in range(len(self.queue)):
            if self.is_stopped or self.room < GRANT:
                break
            self.room -= GRANT
            named.append(self.queue.popleft())
        return named


def limited(per_second: float, *, is_stopped: bool = False) -> CreditRate:
    rate = CreditRate()
    rate.per_second, rate.is_stopped = per_second, is_stopped
    return rate


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from("abcdefgh")),
        st.tuples(st.just("wait"), st.integers(0, 100)),
        st.tuples(st.just("take"), st.none()),
        st.tuples(st.just("rate"), st.sampled_from([4_096, 131_072])),
        st.tuples(st.just("stop"), st.booleans()),
        st.tuples(st.just("leave"), st.sampled_from("abcdefgh")),
    ),
    max_size=60,
)


@given(STEPS)
def test_credits_are_given_in_turn(steps: list[tuple[str, object]]) -> None:
    rate = limited(4_096)
    credits: Credits[str] = Credits(rate)
    slow = SlowCredits(4_096)
    now = 1_000.0
    assert list(credits.take(now)) == slow.take() == []
    slow.room = GRANT
    for what, value in steps:
        match what, value:
            case "ask", str(client):
                if client not in slow.queue:
                    # It was given some just now: nobody is let past those who wait.
                    assert credits.ask(client, now, now) == slow.ask(client)
            case "wait", int(ticks):
                now += ticks / 1024
                slow.unused_seconds += ticks / 1024
            case "take", None:
                assert list(credits.take(now)) == slow.take()
            case "rate", int(per_second):
                rate.per_second = slow.rate = per_second
            case "stop", bool(is_stopped):
                rate.is_stopped = slow.is_stopped = is_stopped
            case "leave", str(client):
                credits.leave(client)
                if client in slow.queue:
                    slow.queue.remove(client)
        assert len(credits) == len(slow.queue)


def publish(wanted: dict[str, float], per_second: float, seconds: float) -> dict[str, float]:
    """Have clients publish as much a second as they want; return how much each could."""
    credits: Credits[str] = Credits(limited(per_second))
    had = dict.fromkeys(wanted, 0)
    last = dict.fromkeys(wanted, 0.0)
    sent = dict.fromkeys(wanted, 0.0)
    waiting = set[str]()
    for tick in range(1, int(seconds * 1000)):
        now = tick / 1000
        for client in credits.take(now):
            had[client] += GRANT
            last[client] = now
            waiting.discard(client)
        for client, want in wanted.items():
            due = want * now - sent[client]
            while due >= 1 and client not in waiting:
                if not had[client]:
                    had[client] = credits.ask(client, last[client], now)
                    if not had[client]:
                        waiting.add(client)
                        break
                    last[client] = now
                had[client] -= 1
                sent[client] += 1
                due -= 1
    return {client: count / seconds for client, count in sent.items()}


def test_all_who_want_too_much_get_the_same_and_who_wants_little_gets_it() -> None:
    wanted = {f"greedy-{number}": 1e6 for number in range(20)} | {"modest": 20.0}
    got = publish(wanted, 16_000, 10)
    assert got.pop("modest") == pytest.approx(20, abs=0.5)
    assert max(got.values()) < 1.1 * min(got.values())
    assert sum(got.values()) == pytest.approx(16_000, rel=0.05)


def test_nothing_is_given_while_it_is_stopped_and_all_go_on_afterwards() -> None:
    rate = limited(20_000, is_stopped=True)
    credits: Credits[str] = Credits(rate)
    assert [credits.ask(client, 0.0, 50.0) for client in "abc"] == [0, 0, 0]
    assert list(credits.take(99.0)) == []
    credits.leave("b")
    rate.is_stopped = False
    assert list(credits.take(100.0)) == ["a", "c"]


def test_who_publishes_little_comes_first_when_it_goes_on() -> None:
    rate = limited(20_000)
    credits: Credits[str] = Credits(rate)
    greedy = [f"greedy-{number}" for number in range(20)]
    for client in greedy:
        credits.ask(client, 0.0, 0.0)
    had = [*list(credits.take(0.5)), *list(credits.take(0.6))]
    waiting = greedy[greedy.index(had[-1]) + 1 :]
    rate.is_stopped = True
    assert credits.ask(had[-1], 0.6, 1.0) == 0
    assert credits.ask("modest", -10.0, 1.0) == 0
    assert credits.ask("gone", -10.0, 1.0) == 0
    credits.leave("gone")
    rate.is_stopped = False
    took = list(credits.take(1.5))
    assert took[0] == "modest"
    assert took[1:] == waiting[: len(took) - 1]
    assert len(took) > 1


def test_who_asks_again_while_credits_are_given_has_to_wait_for_its_turn() -> None:
    rate = limited(MOST_PER_SECOND, is_stopped=True)
    credits: Credits[str] = Credits(rate)
    for client in "ab":
        credits.ask(client, 1.0, 1.0)
    rate.is_stopped = False
    named = []
    for client in credits.take(2.0):
        named.append(client)
        assert not credits.ask(client, 2.0, 2.0) or client == "b"
    assert named == ["a", "b"]


@given(st.lists(st.floats(0, 10), max_size=80), st.floats(0, 1e5))
def test_the_rate_goes_by_the_level(levels: list[float], published: float) -> None:
    rate = CreditRate()
    for level in levels:
        before = rate.per_second
        rate.step(level, published)
        assert rate.is_stopped == (level >= NOTHING_AT)
        assert LEAST_PER_SECOND <= rate.per_second <= MOST_PER_SECOND
        if level >= NOTHING_AT:
            assert rate.per_second == before
        elif level >= BEGINS_AT:
            assert rate.per_second < before or before == LEAST_PER_SECOND
        else:
            assert rate.per_second > before or before == MOST_PER_SECOND


def test_a_limit_is_gone_some_seconds_after_the_level() -> None:
    rate = CreditRate()
    for _ in range(100):
        rate.step(5.0, 1_000)
    assert (rate.per_second, rate.is_limited) == (LEAST_PER_SECOND, True)
    for _ in range(50):
        rate.step(0.0, 1_000)
    assert not rate.is_limited


def test_it_is_known_when_a_client_asked_that_publishes_little() -> None:
    credits = Credits[str](limited(100_000.0))
    credits.ask("new", 0.0, 5.0)
    credits.ask("greedy", 4.9, 5.0)
    assert credits.modest_at == -inf
    credits.ask("modest", 4.7, 5.0)
    assert credits.modest_at == 5.0
