from api.access.limits import MAX_NAMES, RateLimiter
from mqlake.clock import ManualClock


def test_a_bucket_empties_and_fills() -> None:
    clock = ManualClock()
    limiter = RateLimiter(clock, per_second=2.0, burst=3.0)
    assert [limiter.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert limiter.take("b") == 0.0
    clock.advance(0.5)
    assert limiter.take("a") == 0.0
    clock.advance(60)
    assert [limiter.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]


def test_more_than_a_bucket_holds_takes_a_full_one_and_goes_into_debt() -> None:
    clock = ManualClock()
    limiter = RateLimiter(clock, per_second=1.0, burst=2.0)
    assert limiter.take("a", 5.0) == 0.0
    assert limiter.take("a") == 4.0


def test_what_is_given_back_can_be_taken_again_and_no_more() -> None:
    limiter = RateLimiter(ManualClock(), per_second=1.0, burst=2.0)
    limiter.give_back("a", 5.0)
    assert [limiter.take("a") for _ in range(3)] == [0.0, 0.0, 1.0]
    limiter.give_back("a")
    assert [limiter.take("a") for _ in range(2)] == [0.0, 1.0]
    limiter.give_back("a", 5.0)
    assert [limiter.take("a") for _ in range(3)] == [0.0, 0.0, 1.0]


def test_names_are_bounded() -> None:
    limiter = RateLimiter(ManualClock(), per_second=1.0, burst=1.0)
    for number in range(MAX_NAMES + 1):
        limiter.take(str(number))
    assert limiter.take("0") == 0.0  # forgotten, so its bucket is full
    assert limiter.take(str(MAX_NAMES)) == 1.0
