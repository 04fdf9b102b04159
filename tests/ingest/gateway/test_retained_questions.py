"""Questions about retained messages and their answers, without gateways."""

import asyncio
from typing import Any

import pytest

from ingest.gateway.base.outbound import OutboundMessage
from ingest.gateway.log.partitions import Partitions
from ingest.gateway.retained import retained_questions
from ingest.gateway.retained.retained import Retained
from ingest.gateway.retained.retained_questions import (
    ABSENT_SECONDS,
    ANSWER_SECONDS,
    MAX_ANSWER_SECONDS,
    MAX_OPEN,
    MAX_WAITING,
    Question,
    RetainedAnswers,
    RetainedQuestions,
)
from ingest.gateway.store.database import Database
from ingest.protocol.properties import NO_PROPERTIES
from ingest.session.client.newer_retained import MAX_NEWER
from ingest.session.placement import ShardPlacement
from mqlake.clock import ManualClock
from mqlake.errors import InvalidRecord
from mqlake.log.contract import LogFull
from mqlake.records.messages import INBOUND, QUESTION_KEY_PREFIX, delivery_topic
from mqlake.records.retained import (
    RetainedAnswer,
    RetainedMessage,
    RetainedQuestion,
    decode_answer,
    decode_question,
    encode_answer,
    encode_question,
)
from mqlake.records.shards import Run
from tests.ingest.gateway.harness import turns, until

pytestmark = pytest.mark.anyio

ME = Run("me", "run-1")


class Writer:
    """Takes records; full when a test says so."""

    def __init__(self) -> None:
        self.records: list[tuple[str, bytes, bytes, int]] = []
        self.is_full = False

    def append(
        self,
        log_topic: str,
        key: bytes,
        value: bytes,
        _headers: Any,
        _report: Any,
        *,
        partition: int,
    ) -> None:
        if self.is_full:
            raise LogFull("no more fit")
        self.records.append((log_topic, key, value, partition))


class Shards:
    def __init__(self) -> None:
        self.places = [ShardPlacement("one", "two"), ShardPlacement("two", "me")]


class Asking:
    """The asking side and what it has around it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.writer = Writer()
        self.retained = Retained(Database(None), 2, self.clock)
        self.shards = Shards()
        self.partitions = Partitions(2, 1, 2)
        self.questions = RetainedQuestions(
            ME,
            self.writer,  # type: ignore[arg-type]
            self.retained,
            self.shards,  # type: ignore[arg-type]
            self.partitions,
            self.clock,
        )
        self.told = 0

    def ask(self, shard: int = 0, topic_filter: str = "a/#") -> Question:
        return self.questions.ask("default", shard, topic_filter, None, 10, 1000, self._tell)

    def _tell(self) -> None:
        self.told += 1

    @property
    def asked(self) -> list[str]:
        """Whom, in the order of the questions."""
        return [
            key.removeprefix(QUESTION_KEY_PREFIX).decode() for _, key, _, _ in self.writer.records
        ]

    def later(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.questions.tick()

    def answer(self, question: Question, gateway: str, **more: Any) -> None:
        found: dict[str, Any] = {"is_absent": False, "messages": [], "position": None, **more}
        run = found.pop("incarnation", ME.incarnation)
        self.questions.receive_answer(
            encode_answer(RetainedAnswer(gateway, run, question.number, **found))
        )


async def test_a_question_goes_through_the_partition_that_it_is_about() -> None:
    asking = Asking()
    asking.ask(1)
    ((log_topic, key, value, partition),) = asking.writer.records
    assert (log_topic, key, partition) == (INBOUND, b"\0question/two", 1)
    assert decode_question(value) == RetainedQuestion(
        "me", "run-1", 1, "default", 1, "a/#", None, 10, 1000
    )


async def test_owner_and_standby_are_asked_in_turn_ever_less_often() -> None:
    asking = Asking()
    question = asking.ask()
    asking.later(ANSWER_SECONDS - 0.01)
    assert asking.asked == ["one"]
    asking.later(0.01)
    assert asking.asked == ["one", "two"]
    asking.later(ANSWER_SECONDS)  # now none for a while
    asking.later(ABSENT_SECONDS)
    assert asking.asked == ["one", "two", "one"]
    for _ in range(1000):
        asking.later(1)
    assert len(asking.asked) < 3 + 2 * 1000 / MAX_ANSWER_SECONDS
    asking.answer(question, "one")  # the first, late: as good as any
    assert (asking.told, len(asking.questions)) == (1, 0)
    asking.answer(question, "two")
    assert asking.told == 1


async def test_who_has_no_copy_says_so_and_the_other_is_asked_at_once() -> None:
    asking = Asking()
    question = asking.ask()
    asking.answer(question, "one", is_absent=True)
    assert asking.asked == ["one", "two"]
    asking.answer(question, "one", is_absent=True)  # again, by the router's repetition
    assert asking.asked == ["one", "two"]
    asking.answer(question, "two", is_absent=True)
    assert asking.asked == ["one", "two"]
    asking.later(ABSENT_SECONDS)
    assert asking.asked == ["one", "two", "one"]
    assert asking.told == 0


async def test_when_a_shard_changes_hands_the_new_owner_is_asked() -> None:
    asking = Asking()
    asking.ask()
    asking.shards.places[0] = ShardPlacement("three", "one")
    asking.questions.tick()
    assert asking.asked == ["one", "three"]
    asking.shards.places[0] = ShardPlacement("me", None)
    asking.later(60)
    assert asking.asked == ["one", "three"], "nobody else is there"
    asking.retained.hold(0)
    asking.retained.complete(0)
    asking.questions.tick()
    assert asking.told == 1, "its own copy is complete by now"


async def test_an_answer_to_another_run_or_to_nobody_is_nothing() -> None:
    asking = Asking()
    question = asking.ask()
    asking.answer(question, "one", incarnation="run-0")
    assert asking.told == 0
    asking.questions.close(question)
    asking.questions.close(question)
    asking.answer(question, "one")
    assert asking.told == 0
    with pytest.raises(InvalidRecord):
        asking.questions.receive_answer(b"x")


async def test_no_more_than_so_many_are_asked_at_a_time() -> None:
    asking = Asking()
    questions = [asking.ask() for _ in range(MAX_OPEN + 3)]
    assert (len(asking.asked), len(asking.questions)) == (MAX_OPEN, MAX_OPEN + 3)
    asking.questions.close(questions[-1])
    asking.questions.close(questions[0])
    asking.answer(questions[1], "one")
    assert (len(asking.asked), len(asking.questions)) == (MAX_OPEN + 2, MAX_OPEN)


async def test_a_full_log_is_asked_again() -> None:
    asking = Asking()
    asking.writer.is_full = True
    asking.ask()
    asking.writer.is_full = False
    asking.later(ABSENT_SECONDS)
    assert len(asking.asked) == 1


def live(topic_name: str, offset: int) -> OutboundMessage:
    return OutboundMessage(topic_name, b"x", 0, True, NO_PROPERTIES, 1, 0, offset)


async def test_what_came_live_since_a_question_overtakes_its_page() -> None:
    asking = Asking()
    asking.retained.apply("default", "p", live("a/1", 4), None)
    question = asking.ask()
    asking.retained.apply("default", "p", live("a/2", 5), None)
    asking.retained.apply("other", "p", live("a/3", 6), None)
    older = [RetainedMessage(f"a/{number}", 0, 3, 1, None, b"x") for number in (1, 2, 3)]
    assert [asking.questions.is_overtaken(question, one) for one in older] == [False, True, False]
    same = older[1]._replace(rank=5)
    assert not asking.questions.is_overtaken(question, same)
    asking.questions.close(question)
    question = asking.ask()
    assert not asking.questions.is_overtaken(question, older[1]), "nothing is kept for nobody"


async def test_after_too_many_live_messages_a_page_is_void() -> None:
    asking = Asking()
    question = asking.ask()
    for number in range(MAX_NEWER):
        asking.retained.apply("default", "p", live(f"a/{number}", number), None)
    assert not asking.questions.is_void(question)
    asking.retained.apply("default", "p", live("b", MAX_NEWER), None)
    assert asking.questions.is_void(question)
    assert not asking.questions.is_void(asking.ask())


async def test_a_question_goes_through_all_partitions_of_its_shard() -> None:
    asking = Asking()
    asking.partitions.inbound = 6
    asking.ask(shard=1)
    assert [partition for _, _, _, partition in asking.writer.records] == [1, 3, 5]
    assert {decode_question(value).through for _, _, value, _ in asking.writer.records} == {3}


class Answering:
    def __init__(self) -> None:
        self.writer = Writer()
        self.retained = Retained(Database(None), 2, ManualClock())
        self.answers = RetainedAnswers(
            "one",
            self.writer,  # type: ignore[arg-type]
            self.retained,
            asyncio.get_running_loop(),
        )

    def receive(self, number: int, topic_filter: str = "#", **more: Any) -> None:
        members: dict[str, Any] = {
            "position": None,
            "max_messages": 10,
            "max_bytes": 1000,
            **more,
        }
        question = RetainedQuestion("me", "run-1", number, "default", 0, topic_filter, **members)
        self.answers.receive_question(encode_question(question), 0)

    def come(self, number: int, partition: int, through: int) -> None:
        asked = RetainedQuestion("me", "run-1", number, "default", 0, "#", None, 10, 1000, through)
        self.answers.receive_question(encode_question(asked), partition)

    def found(self) -> list[RetainedAnswer]:
        assert all(
            (log_topic, key, partition) == (delivery_topic("me"), b"\0control/retained", 0)
            for log_topic, key, _, partition in self.writer.records
        )
        return [decode_answer(value) for _, _, value, _ in self.writer.records]


async def test_only_a_complete_copy_answers() -> None:
    answering = Answering()
    answering.retained.hold(0)
    answering.retained.apply("default", "p", live("a", 7), b'{"content_type":"x"}')
    answering.receive(1)
    await until(lambda: len(answering.found()) == 1)
    answering.retained.complete(0)
    answering.receive(2)
    await until(lambda: len(answering.found()) == 2)
    answering.retained.let_go(0)
    answering.receive(3)
    await until(lambda: len(answering.found()) == 3)
    message = RetainedMessage("a", 0, 7, 1, b'{"content_type":"x"}', b"x")
    assert answering.found() == [
        RetainedAnswer("one", "run-1", 1, True, [], None),
        RetainedAnswer("one", "run-1", 2, False, [message], None),
        RetainedAnswer("one", "run-1", 3, True, [], None),
    ]


async def test_a_page_has_so_many_messages_and_bytes() -> None:
    answering = Answering()
    answering.retained.hold(0)
    answering.retained.complete(0)
    for number in range(8):
        message = OutboundMessage(f"a/{number}", b"x" * 100, 0, True, NO_PROPERTIES, 1, 0, number)
        answering.retained.apply("default", "p", message, None)
    answering.receive(1, max_messages=3)
    answering.receive(2, max_bytes=150, position="a/3")
    answering.receive(3, position="a/5")
    await until(lambda: len(answering.found()) == 3)
    pages = [[one.topic_name for one in answer.messages] for answer in answering.found()]
    assert pages == [["a/0", "a/1", "a/2"], ["a/3", "a/4"], ["a/5", "a/6", "a/7"]]
    assert [answer.position is None for answer in answering.found()] == [False, False, True]


async def test_questions_wait_for_a_full_log_and_not_without_end() -> None:
    answering = Answering()
    answering.writer.is_full = True
    for number in range(MAX_WAITING + 5):
        answering.receive(number)
    await turns()
    answering.writer.is_full = False
    await until(lambda: len(answering.writer.records) == MAX_WAITING)
    await turns()
    assert [one.number for one in answering.found()] == list(range(MAX_WAITING))


async def test_a_question_that_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    answering = Answering()
    monkeypatch.setattr(retained_questions, "MAX_WAITING", 1)
    for value in (b"", b"[]", b'{"v":1}', b'{"v":9,"gateway":"me"}'):
        with pytest.raises(InvalidRecord):
            answering.answers.receive_question(value, 0)


async def test_a_question_is_answered_when_it_has_come_through_all_partitions() -> None:
    answering = Answering()
    answering.come(1, 0, 2)
    answering.come(1, 0, 2)  # it is asked again
    answering.come(2, 2, 2)
    await turns()
    assert answering.found() == []
    answering.come(1, 2, 2)
    await until(answering.found)
    assert [one.number for one in answering.found()] == [1]
    for number in range(3, MAX_WAITING + 4):
        answering.come(number, 0, 2)
    answering.come(2, 0, 2)
    await turns()
    assert [one.number for one in answering.found()] == [1], "what never comes is forgotten"
