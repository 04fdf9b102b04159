import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ingest.gateway.authentication import attempts as module
from ingest.gateway.authentication.attempts import MAX_ADDRESSES, MAX_UNDER_WAY, LoginAttempts
from ingest.gateway.authentication.outcomes import (
    TOO_MANY_AT_ONCE,
    TOO_MANY_FAILURES,
    WRONG_PASSWORD,
    Accepted,
    Verdict,
)
from ingest.gateway.authentication.web import BUSY, NO_ANSWER
from mqlake.clock import ManualClock

pytestmark = pytest.mark.anyio

ADDRESS, OTHER = "192.0.2.1", "192.0.2.2"
LET_IN = Accepted("alice")


def fail(attempts: LoginAttempts, address: str, times: int) -> None:
    for _ in range(times):
        attempts.take(address)


def are_too_many(attempts: LoginAttempts, address: str) -> bool:
    if not attempts.take(address):
        return True
    attempts.give_back(address)
    return False


def answer(verdict: Verdict) -> Callable[[], Coroutine[Any, Any, Verdict]]:
    async def ask() -> Verdict:
        return verdict

    return ask


class Authenticator:
    """Answers when it is told to.

    Attributes:
        asked: How many attempts it was asked about.
        most: How many of them at once.
    """

    def __init__(self) -> None:
        self.asked = self.most = self._now = 0
        self.answers: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()

    async def ask(self) -> Verdict:
        self.asked += 1
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            return await asyncio.shield(self.answers)
        finally:
            self._now -= 1


async def begun(
    attempts: LoginAttempts, authenticator: Authenticator, count: int, address: str = ADDRESS
) -> list[asyncio.Task[Verdict]]:
    """Begin attempts; return when none of them gets further without an answer."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(attempts.judge(address, authenticator.ask)) for _ in range(count)]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


def test_address_waits_once_it_has_failed_too_often() -> None:
    attempts = LoginAttempts(3, ManualClock())
    fail(attempts, ADDRESS, 2)
    assert not are_too_many(attempts, ADDRESS)
    fail(attempts, ADDRESS, 1)
    assert are_too_many(attempts, ADDRESS)
    assert not are_too_many(attempts, OTHER)


def test_one_attempt_is_free_again_after_its_share_of_a_minute() -> None:
    clock = ManualClock()
    attempts = LoginAttempts(60, clock)
    fail(attempts, ADDRESS, 200)
    clock.advance(0.9)
    assert are_too_many(attempts, ADDRESS)
    clock.advance(0.1)
    assert not are_too_many(attempts, ADDRESS)
    fail(attempts, ADDRESS, 1)
    assert are_too_many(attempts, ADDRESS)
    clock.advance(60)
    fail(attempts, ADDRESS, 59)
    assert not are_too_many(attempts, ADDRESS)


@pytest.mark.parametrize(
    ("one", "other", "are_one"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("host:name", "host:name", True),
    ],
)
def test_addresses_of_one_customer_count_as_one(one: str, other: str, are_one: bool) -> None:
    attempts = LoginAttempts(1, ManualClock())
    fail(attempts, one, 1)
    assert are_too_many(attempts, other) is are_one


def test_zero_is_no_limit_and_no_address_has_none() -> None:
    unlimited = LoginAttempts(0, ManualClock())
    fail(unlimited, ADDRESS, 1000)
    assert not are_too_many(unlimited, ADDRESS)
    attempts = LoginAttempts(1, ManualClock())
    fail(attempts, "", 1000)
    fail(attempts, ADDRESS, 1)
    assert not are_too_many(attempts, "")


def test_memory_is_bounded_and_the_oldest_is_forgotten() -> None:
    attempts = LoginAttempts(1, ManualClock())
    fail(attempts, "first", 1)
    for number in range(MAX_ADDRESSES - 1):
        fail(attempts, f"address-{number}", 1)
    assert are_too_many(attempts, "first")
    fail(attempts, "last", 1)
    assert len(attempts) == MAX_ADDRESSES
    assert not are_too_many(attempts, "first")


async def test_who_logs_in_takes_no_place_of_who_guesses() -> None:
    attempts = LoginAttempts(1, ManualClock())
    fail(attempts, "guesses", 1)
    for number in range(3):
        assert await attempts.judge(f"address-{number}", answer(LET_IN)) == LET_IN
    assert len(attempts) == 1


@pytest.mark.parametrize(
    ("verdict", "counts"),
    [(WRONG_PASSWORD, True), (LET_IN, False), (NO_ANSWER, False), (BUSY, False)],
)
async def test_only_wrong_passwords_stay_counted(verdict: Verdict, counts: bool) -> None:
    attempts = LoginAttempts(2, ManualClock())
    for _ in range(2):
        assert await attempts.judge(ADDRESS, answer(verdict)) == verdict
    assert are_too_many(attempts, ADDRESS) is counts
    asked = await attempts.judge(ADDRESS, answer(LET_IN))
    assert asked == (TOO_MANY_FAILURES if counts else LET_IN)


@pytest.mark.promise
@pytest.mark.parametrize("limit", [3, 60])
async def test_guesses_at_once_are_no_more_than_guesses_one_by_one(limit: int) -> None:
    attempts, authenticator = LoginAttempts(limit, ManualClock()), Authenticator()
    guesses = await begun(attempts, authenticator, 500)
    assert authenticator.asked == min(limit, MAX_UNDER_WAY), "the others wait for these"
    authenticator.answers.set_result(WRONG_PASSWORD)
    verdicts = await asyncio.gather(*guesses)
    assert authenticator.asked == limit
    assert sorted(map(str, verdicts)) == sorted(
        map(str, [WRONG_PASSWORD] * limit + [TOO_MANY_FAILURES] * (500 - limit))
    )


@pytest.mark.parametrize("limit", [0, 3, 60])
async def test_many_that_log_in_at_once_have_their_turn_and_leave_room_for_others(
    limit: int,
) -> None:
    attempts, authenticator = LoginAttempts(limit, ManualClock()), Authenticator()
    crowd = await begun(attempts, authenticator, 500)
    others = await begun(attempts, authenticator, 1, OTHER)
    assert authenticator.asked == min(limit or MAX_UNDER_WAY, MAX_UNDER_WAY) + 1
    authenticator.answers.set_result(LET_IN)
    assert await asyncio.gather(*crowd, *others) == [LET_IN] * 501
    assert not attempts


async def test_attempts_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 40)
    attempts, authenticator = LoginAttempts(60, ManualClock()), Authenticator()
    crowd = await begun(attempts, authenticator, 41)
    authenticator.answers.set_result(LET_IN)
    assert await asyncio.gather(*crowd) == [LET_IN] * 40 + [TOO_MANY_AT_ONCE]
    assert await attempts.judge(ADDRESS, answer(LET_IN)) == LET_IN


async def test_who_does_not_wait_for_the_verdict_has_guessed_all_the_same() -> None:
    attempts, authenticator = LoginAttempts(2, ManualClock()), Authenticator()
    for under_way in await begun(attempts, authenticator, 2):
        under_way.cancel()
        with pytest.raises(asyncio.CancelledError):
            await under_way
    assert await attempts.judge(ADDRESS, answer(LET_IN)) == TOO_MANY_FAILURES
    assert await attempts.judge(OTHER, answer(LET_IN)) == LET_IN


async def test_who_leaves_before_its_turn_has_not() -> None:
    attempts, authenticator = LoginAttempts(2, ManualClock()), Authenticator()
    first, second, third = await begun(attempts, authenticator, 3)
    third.cancel()
    authenticator.answers.set_result(LET_IN)
    assert list(await asyncio.gather(first, second)) == [LET_IN] * 2
    assert third.cancelled()
    assert not are_too_many(attempts, ADDRESS)
