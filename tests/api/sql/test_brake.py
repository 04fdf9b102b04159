"""Who has ended Spark, of those whose queries were lost with it."""

import pytest

from api.sql.brake import MOST_ENDS, WITHIN_SECONDS, Brake, EndsSparkError


class Now:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def waits(brake: Brake, caller: str) -> int:
    """Return for how many seconds a caller waits."""
    try:
        brake.check(caller)
    except EndsSparkError as exc:
        return exc.retry_seconds
    return 0


def test_one_waits_until_his_last_but_one_end_is_long_ago() -> None:
    now = Now()
    brake = Brake(now)
    for life, at in ((1, 0.0), (2, 100.0), (3, 250.5)):
        now.seconds = at
        assert waits(brake, "greedy") == 0 or life == 3
        brake.note("greedy", life, is_proven=True)
    assert waits(brake, "greedy") == 450
    assert waits(brake, "other") == 0
    now.seconds = 100.0 + WITHIN_SECONDS
    assert waits(brake, "greedy") == 0


def test_a_life_counts_once_and_for_its_one_caller_only() -> None:
    brake = Brake(Now())
    for life in (1, 2):
        brake.note("greedy", life, is_proven=False)
        brake.note("other", life, is_proven=False)
    brake.note("greedy", 3, is_proven=False)
    brake.note("greedy", 3, is_proven=False)
    assert waits(brake, "greedy") == waits(brake, "other") == 0
    brake.note("greedy", 4, is_proven=True)
    assert waits(brake, "greedy") > 0
    assert waits(brake, "other") == 0


def test_one_query_alone_is_not_blamed_for_what_else_ran() -> None:
    brake = Brake(Now())
    for life in range(10):
        brake.note("one", life, is_proven=False)
    assert waits(brake, "one") == 0


def test_the_system_never_waits() -> None:
    brake = Brake(Now())
    for life in range(10):
        brake.note("", life, is_proven=True)
    assert waits(brake, "") == 0


def test_what_is_known_is_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.sql.brake._MOST_LIVES", 5)
    brake = Brake(Now())
    for life in range(MOST_ENDS):
        brake.note("one", life, is_proven=True)
    assert waits(brake, "one") > 0
    for life in range(10, 15):
        brake.note("two", life, is_proven=True)
    assert waits(brake, "one") == 0
