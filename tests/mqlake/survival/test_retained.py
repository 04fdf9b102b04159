"""The verdict on what new subscriptions see of retained messages."""

from mqlake.survival.ledger import Look, RetainedVerdict, Sent, judge_retained

TOPICS = ["a", "b"]
SENT = [Sent(topic, number) for topic in TOPICS for number in range(5)]


def verdict(*looks: Look) -> RetainedVerdict:
    return judge_retained(SENT, looks, TOPICS, stored_at=10.0)


def look(*values: Sent, at: float = 1.0, least: int = 2) -> Look:
    return Look(at, dict.fromkeys(TOPICS, least), list(values))


def test_the_last_values_and_what_comes_after_them_are_well() -> None:
    found = verdict(
        look(Sent("a", 2), Sent("b", 4)),
        look(Sent("b", 3), Sent("b", 4), Sent("a", 3), at=10.0),
    )
    assert found == RetainedVerdict(10, 2, 0, 0, 1)


def test_a_value_that_is_older_than_one_known_is_told() -> None:
    found = verdict(look(Sent("a", 1), Sent("b", 2)))
    assert (found.back_in_time, found.problems) == (
        1,
        ("retained message older than one before: 1 (a#1)",),
    )


def test_a_value_that_comes_behind_a_later_one_is_told() -> None:
    found = verdict(look(Sent("a", 4), Sent("b", 2), Sent("a", 3)))
    assert found.problems == ("retained message older than one before: 1 (a#3)",)


def test_a_topic_without_a_message_is_told() -> None:
    found = verdict(look(Sent("a", 2)))
    assert (found.missing, found.problems) == (1, ("retained message missing: 1 (b#2)",))


def test_what_nobody_retained_and_what_is_damaged_is_told() -> None:
    odd = look(Sent("a", 9), Sent("b", 2))
    odd.damaged.append(Sent("b", 2))
    assert verdict(odd).problems == (
        "nobody retained: 1 (a#9)",
        "retained message damaged: 1 (b#2)",
    )
