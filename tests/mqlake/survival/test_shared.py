"""The verdict on messages of a share group."""

from collections.abc import Sequence

from mqlake.survival.ledger import Arrival, Sent, Verdict, judge_shared

A, B, C = (Sent("t", number) for number in range(3))
ALL = [A, B, C]


def verdict(
    one: Sequence[Sent], other: Sequence[Sent], stored: Sequence[Sent] = ALL, damaged: bool = False
) -> Verdict:
    arrivals = {
        name: [Arrival(message, dup=False, at=0, is_damaged=damaged) for message in messages]
        for name, messages in (("one", one), ("other", other))
    }
    return judge_shared(ALL, {A, B}, arrivals, {one: stored.count(one) for one in stored})


def test_each_message_to_one_member_in_whatever_order_is_well() -> None:
    found = verdict([C, A], [B])
    assert (found.received, found.lost, found.duplicates, found.problems) == (3, 0, 0, ())


def test_a_message_that_nobody_acknowledged_may_be_missing() -> None:
    assert verdict([A], [B]).problems == ()


def test_a_message_that_no_member_has_is_lost() -> None:
    assert verdict([A], [C]).problems == ("lost: 1 (t#1)",)


def test_a_message_that_two_members_have_is_told() -> None:
    assert verdict([A, B], [B]).problems == ("to members twice: 1 (t#1)",)
    assert verdict([A, B, B], []).duplicates == 1


def test_what_nobody_sent_and_what_is_damaged_is_told() -> None:
    assert verdict([A, B], [Sent("t", 9)]).problems == ("nobody sent: 1 (t#9)",)
    assert verdict([A], [B], damaged=True).problems == ("damaged: 2 (t#0, t#1)",)


def test_a_message_that_the_log_has_twice_is_told() -> None:
    assert verdict([A], [B], stored=[A, B, B]).problems == ("twice in the log: 1 (t#1)",)
