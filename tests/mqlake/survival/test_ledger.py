"""The verdict on what became of messages: each way in which a promise can be broken is found."""

from collections.abc import Iterable

from mqlake.survival.ledger import Arrival, Sent, Verdict, judge, payload_of

SENT = [Sent(topic, number) for topic in ("a", "b") for number in range(2_000)]
ONCE = dict.fromkeys(SENT, 1)


def arrivals(messages: Iterable[Sent], *, dup: bool = False, connection: int = 1) -> list[Arrival]:
    return [Arrival(message, dup, 0.0, connection) for message in messages]


def verdict(
    came: list[Arrival],
    *,
    qos: int = 1,
    acknowledged: Iterable[Sent] = SENT,
    stored: dict[Sent, int] = ONCE,
) -> Verdict:
    return judge(qos, SENT, set(acknowledged), {"someone": came}, stored)


def test_every_message_once_and_in_order_is_well() -> None:
    found = verdict(arrivals(SENT), qos=2)
    assert found.problems == ()
    assert (found.sent, found.acknowledged, found.received) == (4_000, 4_000, 4_000)


def test_topics_may_overtake_each_other() -> None:
    assert verdict(arrivals(SENT[2_000:] + SENT[:2_000])).problems == ()


def test_an_acknowledged_message_that_did_not_come_is_lost() -> None:
    found = verdict(arrivals(SENT[:-1]))
    assert found.lost == 1
    assert found.problems == ("someone: lost: 1 (b#1999)",)


def test_a_message_that_nobody_acknowledged_may_be_missing() -> None:
    assert verdict(arrivals(SENT[:-1]), acknowledged=SENT[:-1]).problems == ()


def test_a_message_behind_a_later_one_of_its_topic_is_out_of_order() -> None:
    found = verdict(arrivals([SENT[1], SENT[0], *SENT[2:]]))
    assert found.out_of_order == 1
    assert found.problems == ("someone: out of order: 1 (a#0)",)


def test_a_repetition_is_not_out_of_order() -> None:
    again = arrivals(SENT[3:5], dup=True, connection=2)
    found = verdict(arrivals(SENT[:5]) + again + arrivals(SENT[5:], connection=2))
    assert found.problems == ()
    assert (found.duplicates, found.without_dup, found.out_of_order) == (2, 0, 0)


def test_repetitions_come_in_their_order_too() -> None:
    again = arrivals([SENT[4], SENT[3]], dup=True, connection=2)
    found = verdict(arrivals(SENT[:5]) + again + arrivals(SENT[5:], connection=2))
    assert found.problems == ("someone: out of order: 1 (a#3)",)


def test_a_message_that_its_publisher_repeated_may_come_behind_a_later_one() -> None:
    came = arrivals(SENT[:5]) + arrivals(SENT[3:5]) + arrivals(SENT[5:])
    twice = {**ONCE, SENT[3]: 2, SENT[4]: 2}
    assert verdict(came, stored=twice).problems == ()


def test_a_repetition_counts_as_without_dup_unless_the_log_has_it_twice() -> None:
    came = arrivals(SENT) + arrivals(SENT[:2], connection=2)
    assert verdict(came).without_dup == 2
    assert verdict(came, stored={**ONCE, SENT[0]: 2}).without_dup == 1


def test_few_repetitions_are_qos_1_many_are_not() -> None:
    assert verdict(arrivals(SENT) + arrivals(SENT[:4], dup=True, connection=2)).problems == ()
    found = verdict(arrivals(SENT) + arrivals(SENT[:5], dup=True, connection=2))
    assert found.problems == ("5 duplicates, at most 4 expected",)


def test_no_repetition_is_qos_2() -> None:
    found = verdict(arrivals(SENT) + arrivals(SENT[:1], dup=True, connection=2), qos=2)
    assert found.problems == ("someone: twice: 1 (a#0)",)
    found = verdict(arrivals(SENT), qos=2, stored={**ONCE, SENT[0]: 2})
    assert found.problems == ("twice in the log: 1 (a#0)",)


def test_what_was_acknowledged_is_in_the_log() -> None:
    found = verdict(arrivals(SENT), stored={**ONCE, SENT[0]: 0})
    assert found.problems == ("acknowledged and not in the log: 1 (a#0)",)


def test_a_message_that_is_not_what_was_sent_is_found() -> None:
    damaged = Arrival(SENT[0], dup=False, at=0.0, is_damaged=True)
    assert verdict([damaged, *arrivals(SENT[1:])]).problems == ("someone: damaged: 1 (a#0)",)
    found = verdict([*arrivals(SENT), *arrivals([Sent("c", 0)])])
    assert found.problems == ("someone: nobody sent: 1 (c#0)",)


def test_payloads_are_repeatable_and_differ() -> None:
    assert payload_of(1, SENT[0]) == payload_of(1, SENT[0])
    assert len({payload_of(seed, message) for seed in (1, 2) for message in SENT[:50]}) == 100
