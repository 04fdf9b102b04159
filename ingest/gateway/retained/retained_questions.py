"""Retained messages of shards that other gateways have: questions and answers.

    question ──► partitions of its shard ──► router ──► delivery topic of the owner
                                                                          │
    page ◄── delivery topic of the asker ◄── control record ◄── store ◄───┘

The way through the partitions makes the answer complete: the router gives the question to the owner
behind everything that was accepted before it was asked, so behind the barriers of the subscription.
A page that comes is as old as its answer; `ingest.session.client.newer_retained` knows the messages
that this gateway has delivered since.

The owner is asked first, then the standby, then the owner as it is by then, until one answers.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Final

from mqlake.errors import LogError
from mqlake.log.contract import LogFull
from mqlake.records.messages import CONTROL_KEY_PREFIX, INBOUND, delivery_topic, question_key
from mqlake.records.retained import (
    ANSWER,
    RetainedAnswer,
    RetainedQuestion,
    decode_answer,
    decode_question,
    encode_answer,
    encode_question,
    partitions_of,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ingest.gateway.log.partitions import Partitions
    from ingest.gateway.retained.retained import Retained
    from ingest.gateway.retained.retained_shards import RetainedShards
    from mqlake.clock import Clock
    from mqlake.log.contract import LogWriter
    from mqlake.records.retained import RetainedMessage
    from mqlake.records.shards import Run

logger = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 1.0
"""How long an answer may take before another gateway is asked; twice as long each time after that,
so that a router that is down finds few questions."""

MAX_ANSWER_SECONDS: Final = 16.0

ABSENT_SECONDS: Final = 0.25
"""Pause before they are asked again when none has a complete copy; it doubles, too."""

MAX_ABSENT_SECONDS: Final = 4.0

MAX_OPEN: Final = 1_000
"""Unanswered questions of a gateway; more wait here for their turn."""

MAX_WAITING: Final = 10_000
"""Questions of others that wait for an answer here. The asker of the next one asks again."""

WORK_SECONDS: Final = 0.005
"""For so long questions are answered in one turn of the loop."""

FULL_SECONDS: Final = 0.01
"""How often a full log is asked whether it has room again."""

_ANSWER_KEY: Final = CONTROL_KEY_PREFIX + ANSWER.encode()


@dataclass(slots=True, eq=False)
class Question:
    """A page that is awaited, or has come and is not sent yet.

    Attributes:
        page: The answer; None before.
    """

    number: int
    tenant: str
    shard: int
    topic_filter: str
    position: str | None
    max_messages: int
    max_bytes: int
    on_answer: Callable[[], None]
    round: int
    candidates: list[str] = field(default_factory=list)
    asked: str = ""
    attempts: int = 0
    due_at: float = 0.0
    is_closed: bool = False
    page: RetainedAnswer | None = None


class RetainedQuestions:
    """Questions of this gateway to others.

    Args:
        me: This run of this gateway.
        writer: Writer of this gateway's messages and barriers.
        retained: Knows messages that have come live meanwhile.
        shards: Says which gateways are to be asked.
        partitions: Numbers of partitions of the log topics.
        clock: Measures time-outs.
    """

    def __init__(
        self,
        me: Run,
        writer: LogWriter,
        retained: Retained,
        shards: RetainedShards,
        partitions: Partitions,
        clock: Clock,
    ) -> None:
        self._me = me
        self._partitions = partitions
        self._writer = writer
        self._retained = retained
        self._newer = retained.newer
        self._shards = shards
        self._clock = clock
        self._number = 0
        self._open: dict[int, Question] = {}
        self._waiting: dict[int, Question] = {}

    def __len__(self) -> int:
        """Return how many questions are not answered."""
        return len(self._open) + len(self._waiting)

    def ask(
        self,
        tenant: str,
        shard: int,
        topic_filter: str,
        position: str | None,
        max_messages: int,
        max_bytes: int,
        on_answer: Callable[[], None],
    ) -> Question:
        """Ask for a page; the caller has to `close` the question.

        Args:
            tenant: Whose messages.
            shard: Which.
            topic_filter: A plain one.
            position: Beginning of the page.
            max_messages: Most messages of the page.
            max_bytes: Most bytes of the page.
            on_answer: Called when there is a page, or when this gateway has the shard by now.
        """
        self._number += 1
        question = Question(
            self._number,
            tenant,
            shard,
            topic_filter,
            position,
            max_messages,
            max_bytes,
            on_answer,
            self._newer.watch(shard),
        )
        self._waiting[question.number] = question
        self._ask_waiting()
        return question

    def close(self, question: Question) -> None:
        """Forget a question and its page."""
        if question.is_closed:
            return
        question.is_closed = True
        self._newer.leave(question.shard)
        self._waiting.pop(question.number, None)
        if self._open.pop(question.number, None) is not None:
            self._ask_waiting()

    def is_void(self, question: Question) -> bool:
        """Tell whether it is not known any more which messages of a page are still the newest."""
        return self._newer.rounds.get(question.shard, 0) != question.round

    def is_overtaken(self, question: Question, message: RetainedMessage) -> bool:
        """Tell whether a newer message than that of the page was delivered meanwhile."""
        return self._newer.is_overtaken(
            question.shard, question.tenant, message.topic_name, message.rank
        )

    def receive_answer(self, value: bytes) -> None:
        """Take an answer; one to a question that was given up is ignored.

        Raises:
            InvalidRecord: It cannot be read.
        """
        answer = decode_answer(value)
        question = self._open.get(answer.number)
        if question is None or answer.incarnation != self._me.incarnation:
            return
        if answer.is_absent:
            if answer.gateway == question.asked:
                self._send(question)
            return
        del self._open[answer.number]
        question.page = answer
        question.on_answer()
        self._ask_waiting()

    def tick(self) -> None:
        """Ask again questions that were not answered in time."""
        now = self._clock.monotonic()
        for question in list(self._open.values()):
            if question.is_closed:
                continue
            if self._retained.is_complete(question.shard):
                question.on_answer()
            elif now >= question.due_at or question.candidates != self._candidates(question.shard):
                self._send(question)
        self._ask_waiting()

    def _ask_waiting(self) -> None:
        while self._waiting and len(self._open) < MAX_OPEN:
            number = next(iter(self._waiting))
            question = self._open[number] = self._waiting.pop(number)
            self._send(question)

    def _send(self, question: Question) -> None:
        """Ask the next gateway; after all of them, wait a little."""
        now = self._clock.monotonic()
        candidates = self._candidates(question.shard)
        if candidates != question.candidates:  # the shard has changed hands
            question.candidates = candidates
            question.attempts = 0
        cycle, turn = divmod(question.attempts, len(candidates) + 1)
        question.attempts += 1
        if turn == len(candidates):
            question.due_at = now + min(MAX_ABSENT_SECONDS, ABSENT_SECONDS * 2 ** min(cycle, 9))
            return
        question.asked = candidates[turn]
        question.due_at = now + min(MAX_ANSWER_SECONDS, ANSWER_SECONDS * 2 ** min(cycle, 9))
        count = self._partitions
        through = partitions_of(question.shard, count.retained, count.inbound)
        value = encode_question(
            RetainedQuestion(
                self._me.gateway,
                self._me.incarnation,
                question.number,
                question.tenant,
                question.shard,
                question.topic_filter,
                question.position,
                question.max_messages,
                question.max_bytes,
                len(through),
            )
        )
        key = question_key(question.asked)
        try:
            for partition in through:
                self._writer.append(INBOUND, key, value, [], _ignore, partition=partition)
        except LogError as error:
            question.due_at = now + ABSENT_SECONDS
            logger.warning("retained messages not asked for", extra={"fields": {"reason": error}})

    def _candidates(self, shard: int) -> list[str]:
        place = self._shards.places[shard]
        return [name for name in place if name is not None and name != self._me.gateway]


class RetainedAnswers:
    """Questions of others to this gateway, answered from its copies.

    Args:
        gateway: Its name.
        writer: Takes the answers.
        retained: The copies.
        loop: In which pages are read, a few in each turn.
    """

    def __init__(
        self,
        gateway: str,
        writer: LogWriter,
        retained: Retained,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._gateway = gateway
        self._writer = writer
        self._retained = retained
        self._loop = loop
        self._waiting: deque[RetainedQuestion] = deque(maxlen=MAX_WAITING)
        # Of questions that go through several partitions, those that they have come from.
        self._coming: dict[tuple[str, str, int], set[int]] = {}
        self._is_due = False

    def receive_question(self, value: bytes, partition: int) -> None:
        """Take a question; all records before it in this partition have been taken.

        Raises:
            InvalidRecord: It cannot be read.
        """
        question = decode_question(value)
        if len(self._waiting) < MAX_WAITING and self._has_come(question, partition):
            self._waiting.append(question)
            self._schedule()

    def _has_come(self, question: RetainedQuestion, partition: int) -> bool:
        """Tell whether it has come through all its partitions."""
        if question.through == 1:
            return True
        key = question.gateway, question.incarnation, question.number
        come = self._coming.setdefault(key, set())
        come.add(partition)
        if len(come) < question.through:
            if len(self._coming) > MAX_WAITING:
                del self._coming[next(iter(self._coming))]
            return False
        del self._coming[key]
        return True

    def _schedule(self, seconds: float = 0.0) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_later(seconds, self._answer_waiting)

    def _answer_waiting(self) -> None:
        self._is_due = False
        until = perf_counter() + WORK_SECONDS
        while self._waiting and perf_counter() < until:
            try:
                self._answer(self._waiting[0])
            except LogFull:
                self._schedule(FULL_SECONDS)
                return
            self._waiting.popleft()
        if self._waiting:
            self._schedule()

    def _answer(self, question: RetainedQuestion) -> None:
        is_absent = not self._retained.is_complete(question.shard)
        messages: list[RetainedMessage] = []
        position = None
        if not is_absent:
            messages, position = self._retained.page(
                question.shard,
                question.tenant,
                question.topic_filter,
                question.position,
                question.max_messages,
                question.max_bytes,
            )
        answer = RetainedAnswer(
            self._gateway,
            question.incarnation,
            question.number,
            is_absent,
            messages,
            position,
        )
        try:
            self._writer.append(
                delivery_topic(question.gateway),
                _ANSWER_KEY,
                encode_answer(answer),
                [],
                _ignore,
                partition=0,
            )
        except LogFull:
            raise
        except LogError as error:
            logger.warning("retained messages not answered", extra={"fields": {"reason": error}})


def _ignore(_partition: int, _offset: int, _error: LogError | None) -> None:
    pass
