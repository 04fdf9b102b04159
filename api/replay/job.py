"""Replay the messages that a SELECT over `messages` gives, as a job.

The result of the query is a file (`api.sql.running`), read a little at a time. Every message that
was dealt with moves the job's place on, so that a job that was interrupted goes on behind it;
messages on their way at that moment, two seconds' worth at most, come again.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from api.jobs.jobs import Job
from api.jobs.pace import JobPace, when_there_is_room
from api.replay.order import COLUMNS_HINT, Place, ReplayOrder, ordered_query
from api.replay.rows import MessageLimits, RowError, StoredMessage, read_row, read_rows
from api.replay.targets import ReplayError, ReplayTarget
from api.sql.errors import QueryError
from api.sql.results import Result
from api.sql.running import QueryLimits, QueryRunner

BATCH_MESSAGES: Final = 500
BATCH_BYTES: Final = 512 * 1024
"""Size of a batch; the message that reaches it is the last."""
_BATCHES_A_SECOND: Final = 10
"""So that a rate is not a burst once a second."""
_TOGETHER_SECONDS: Final = 0.01
"""Messages that are so near are sent together."""
_STEP_SECONDS: Final = 10.0
"""Pause between checks whether the replay may go on, during a wait between two messages."""
_TOUCH_SECONDS: Final = 600.0


class Replay:
    """One run of a job.

    Args:
        job: Says how far it is.
        order: Request of the job, checked.
        queries: Run the query.
        limits: Limits of its result.
        target: Takes the messages.
        most: Largest size of a message.
        check_rights: Raises an error when whoever has begun the replay may not go on.
        monotonic: The clock that messages wait by.
    """

    def __init__(
        self,
        job: Job,
        order: ReplayOrder,
        queries: QueryRunner,
        limits: QueryLimits,
        target: ReplayTarget,
        most: MessageLimits,
        check_rights: Callable[[], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job = job
        self._order = order
        self._queries = queries
        self._limits = limits
        self._target = target
        self._most = most
        self._check_rights = check_rights
        self._monotonic = monotonic
        counted: dict[str, int] = job.place.get("counts", {})
        self._sent = counted.get("sent", 0)
        self._refused = counted.get("refused", 0)
        self._reason: str | None = job.place.get("reason")
        self._batch_messages = max(1, min(BATCH_MESSAGES, order.rate // _BATCHES_A_SECOND))
        self._pace = JobPace(order.rate)

    def run(self) -> dict[str, Any]:
        """Do it; return its result.

        Raises:
            ReplayError: The query fails, gives too much, or the target is gone, or the caller who
                began the replay could not begin it any more.
            LogError: The log does not answer.
            Cancelled: The job was cancelled.
            SparkAway: Spark does not answer.
        """
        job = self._job
        self._check()
        job.advance(0.0, "running the query")
        after = job.place.get("after")
        query = ordered_query(
            self._order, job.created_at_ms, None if after is None else Place(*after)
        )
        try:
            run = self._queries.run(
                query,
                "parquet",
                self._limits,
                job.cancelling.is_set,
                caller=self._order.username,
            )
            with run as result:
                if result.is_truncated and self._order.limit is None:
                    raise ReplayError(
                        f"the SELECT gives more than {result.rows:,} messages: select fewer, or "
                        "give a limit"
                    )
                self._send_all(result)
        except QueryError as exc:
            detail = exc.problem if exc.line is None else f"line {exc.line}: {exc.problem}"
            raise ReplayError(f"{detail}; {COLUMNS_HINT}") from exc
        return {**self._counts(), "refused_because": self._reason}

    def _counts(self) -> dict[str, int]:
        return {"sent": self._sent, "refused": self._refused}

    def _send_all(self, result: Result) -> None:
        done = self._sent + self._refused
        total = max(1, done + result.rows)
        batch: list[StoredMessage] = []
        size = 0
        begin, first_us = self._monotonic(), None
        touched = begin
        for row in read_rows(result):
            done += 1
            try:
                message = read_row(row, self._order, self._most)
            except RowError as exc:
                self._refused += 1
                self._reason = self._reason or str(exc)
                continue
            first_us = message.at_us if first_us is None else first_us
            wait = self._wait(begin, message.at_us - first_us)
            full = len(batch) >= self._batch_messages or size >= BATCH_BYTES
            if batch and (full or wait > _TOGETHER_SECONDS):
                self._send(batch, (done - 1) / total, total)
                batch, size = [], 0
                wait = self._wait(begin, message.at_us - first_us)
            while wait > _TOGETHER_SECONDS:
                self._job.cancelling.wait(min(wait, _STEP_SECONDS))
                self._check()
                wait = self._wait(begin, message.at_us - first_us)
            if self._monotonic() - touched > _TOUCH_SECONDS:
                touched = self._monotonic()
                result.touch()
            batch.append(message)
            size += len(message.payload)
        if batch:
            self._send(batch, 1.0, total)

    def _check(self) -> None:
        self._job.check()
        self._check_rights()

    def _wait(self, begin: float, since_us: int) -> float:
        """Return for how many seconds a message is not due."""
        if self._order.speed is None:
            return 0.0
        return begin + since_us / 1_000_000 / self._order.speed - self._monotonic()

    def _send(self, batch: list[StoredMessage], progress: float, total: int) -> None:
        self._job.check()
        self._pace.wait(len(batch), self._job.cancelling.wait)
        self._check()
        when_there_is_room(self._job, partial(self._target.send, batch), self._check)
        self._sent += len(batch)
        last = batch[-1].place
        self._job.place = {
            "after": [last.at_us, last.partition, last.offset],
            "counts": self._counts(),
            "reason": self._reason,
        }
        self._job.advance(progress, f"{self._sent:,} of {total:,} messages")
