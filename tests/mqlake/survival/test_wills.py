"""Which wills are promised, and which must not come."""

from collections.abc import Sequence

from mqlake.survival.ledger import Arrival, Life, Sent, WillVerdict, judge_wills

FIRST = Sent("w/1/will", 0)
SECOND = Sent("w/1/will", 1)


def verdict(
    lives: Sequence[Life], came: Sequence[tuple[Sent, float]] = (), stored: int = 1
) -> WillVerdict:
    return judge_wills(
        lives,
        [FIRST, SECOND],
        [Arrival(will, dup=False, at=at) for will, at in came],
        {will: stored for will, _ in came},
        due_seconds=14,
        unnoticed_seconds=1,
    )


def test_a_connection_that_breaks_for_long_gives_its_will_once() -> None:
    found = verdict([Life(FIRST, broke_at=10, sought_at=25), Life(SECOND)], [(FIRST, 21)])
    assert found.problems == ()
    assert (found.clients, found.broken, found.due, found.wills) == (1, 1, 1, 1)
    assert found.by_client == {"w/1/will": 1}


def test_a_will_that_is_due_and_does_not_come_is_missing() -> None:
    found = verdict([Life(FIRST, broke_at=10)])
    assert (found.due, found.missing) == (1, 1)
    assert found.problems == ("due will did not come: 1 (w/1/will#0)",)


def test_a_client_that_was_back_soon_may_have_had_its_will_published_or_not() -> None:
    lives = [Life(FIRST, broke_at=10, sought_at=11), Life(SECOND)]
    assert verdict(lives).problems == ()
    assert verdict(lives, [(FIRST, 12)]).problems == ()


def test_a_will_that_the_log_has_twice_is_told() -> None:
    found = verdict([Life(FIRST, broke_at=10)], [(FIRST, 12)], stored=2)
    assert (found.wills, found.twice) == (2, 1)
    assert found.problems == ("will twice in the log: 1 (w/1/will#0)",)


def test_a_will_of_a_connected_client_is_told() -> None:
    found = verdict([Life(FIRST)], [(FIRST, 12)])
    assert found.of_connected == 1
    assert found.problems == ("will of a connected client: 1 (w/1/will#0)",)


def test_a_client_may_notice_a_little_later_that_its_connection_is_over() -> None:
    assert verdict([Life(FIRST, broke_at=12.9)], [(FIRST, 12)]).of_connected == 0
    assert verdict([Life(FIRST, broke_at=13.1)], [(FIRST, 12)]).of_connected == 1


def test_an_attempt_that_was_not_answered_may_give_its_will_once() -> None:
    assert verdict([Life(FIRST)], [(SECOND, 12)]).problems == ()
    assert verdict([Life(FIRST)], [(Sent("w/2/will", 0), 12)]).problems == (
        "nobody's will: 1 (w/2/will#0)",
    )
