"""Keep streaming queries running: a failed one is started again, later each time."""

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from mqlake.clock import Clock
from mqlake.errors import LogError
from streaming.application.figures import Watched, progress_of
from streaming.engine.slots import IN_BATCHES, QueryMode
from streaming.jvm.bridge import CALL_LOGGER, JvmError

_logger = logging.getLogger(__name__)
_interrupting = threading.Lock()

FIRST_BACK_OFF_SECONDS: Final = 1.0
LAST_BACK_OFF_SECONDS: Final = 30.0
STEADY_SECONDS: Final = 60.0
"""A query that ran this long starts again at the first back-off."""
MAX_REASON: Final = 300


def _always() -> bool:
    return True


def _in_batches() -> QueryMode:
    return IN_BATCHES


@dataclass(frozen=True, slots=True)
class QueryJob:
    """A streaming query of an application.

    Attributes:
        name: Name of the query.
        start: Starts the query from its last position.
        pool: Scheduler pool of its tasks.
        when: Whether it has anything to do.
        mode: How it runs, as of its last start.
    """

    name: str
    start: Callable[[], StreamingQuery]
    pool: str
    when: Callable[[], bool] = _always
    mode: Callable[[], QueryMode] = _in_batches


@dataclass(slots=True)
class _Supervised:
    job: QueryJob
    query: StreamingQuery | None = None
    started_at: float = 0.0
    retry_at: float = 0.0
    back_off: float = FIRST_BACK_OFF_SECONDS
    restarts: int = 0
    reason: str = ""
    is_ending: bool = False
    """It is to begin again."""


class QuerySupervisor:
    """Starts the queries given and starts again those that fail.

    Not a thread: `check` does due work; its caller says when.

    Args:
        clock: For the time between starts.
        jobs: The queries.
        use_pool: Lets jobs that this thread starts run in a scheduler pool.
    """

    def __init__(
        self, clock: Clock, jobs: Iterable[QueryJob], use_pool: Callable[[str], None]
    ) -> None:
        self._clock = clock
        self._use_pool = use_pool
        self._jobs = {job.name: _Supervised(job) for job in jobs}

    def check(self) -> None:
        """Start due queries and notice failed ones."""
        now = self._clock.monotonic()
        for name, one in self._jobs.items():
            if one.is_ending and one.query is not None and not one.query.isActive:
                one.query, one.is_ending = None, False
            if one.query is not None and not one.query.isActive:
                if now - one.started_at >= STEADY_SECONDS:
                    one.back_off = FIRST_BACK_OFF_SECONDS
                error = one.query.exception()
                self._failed(name, one, "it stopped by itself" if error is None else str(error))
            if not one.job.when():
                self._rest(name, one)
            elif one.query is None and now >= one.retry_at:
                try:
                    self._use_pool(one.job.pool)
                    one.query = one.job.start()
                except (PySparkException, JvmError, LogError) as error:
                    self._failed(name, one, str(error))
                else:
                    one.started_at = now
                    _logger.info("query started", extra={"fields": {"query": name}})

    def restart(self, name: str) -> None:
        """Have a query read its present partitions; `check` starts it when it has ended.

        To stop one that rests between two batches takes as long as the rest.
        """
        one = self._jobs[name]
        if one.query is not None and not one.is_ending:
            one.is_ending = True
            threading.Thread(
                target=_interrupt, args=(name, one, one.query), name="restart", daemon=True
            ).start()

    def _rest(self, name: str, one: _Supervised) -> None:
        one.reason = ""
        if one.query is not None:
            self._stop(name, one)
            _logger.info("query has nothing to do", extra={"fields": {"query": name}})

    def trouble(self) -> str:
        """Say which queries do not run and why; empty when all do."""
        return "; ".join(
            f"query {name} failed and is started again: {one.reason}"
            for name, one in self._jobs.items()
            if one.query is None and one.reason
        )

    def is_processing(self, name: str) -> bool:
        """Tell whether a query is in a batch or has finished one."""
        query = self._jobs[name].query
        if query is None:
            return False
        return bool(query.status["isTriggerActive"]) or query.lastProgress is not None

    def watched(self, checkpoints: Path) -> list[Watched]:
        """Return the queries to be looked at; from any thread.

        Args:
            checkpoints: Holds a folder for each.
        """
        return [
            Watched(
                name,
                progress_of(one.query),
                checkpoints / name,
                one.restarts,
                one.job.mode().real_time,
            )
            for name, one in self._jobs.items()
        ]

    def stop(self) -> None:
        """Stop all queries side by side; those that cannot be stopped are logged."""
        running = [(name, one) for name, one in self._jobs.items() if one.query is not None]
        stopping = [
            threading.Thread(target=self._stop, args=one, name=f"stop-{one[0]}") for one in running
        ]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join()

    def _stop(self, name: str, one: _Supervised) -> None:
        assert one.query is not None
        _end(name, one.query)
        one.query, one.is_ending = None, False

    def _failed(self, name: str, one: _Supervised, reason: str) -> None:
        one.query = None
        one.reason = first_line(reason)
        one.restarts += 1
        one.retry_at = self._clock.monotonic() + one.back_off
        _logger.error(
            "query failed",
            extra={
                "fields": {
                    "query": name,
                    "again_in_seconds": one.back_off,
                    "reason": reason[: 10 * MAX_REASON],
                }
            },
        )
        one.back_off = min(one.back_off * 2, LAST_BACK_OFF_SECONDS)


def _interrupt(name: str, one: _Supervised, query: StreamingQuery) -> None:
    """End a query that goes on later; a batch that was under way comes again.

    That this batch fails is no error to report. A query that did not stop may be
    asked again.
    """
    with _interrupting:
        level = CALL_LOGGER.level
        CALL_LOGGER.setLevel(logging.CRITICAL)
        try:
            has_ended = _end(name, query)
        finally:
            CALL_LOGGER.setLevel(level)
    if not has_ended:
        one.is_ending = False


def _end(name: str, query: StreamingQuery) -> bool:
    try:
        query.stop()
    except (PySparkException, JvmError, OSError) as error:
        fields = {"query": name, "reason": first_line(str(error))}
        _logger.warning("query did not stop", extra={"fields": fields})
        return False
    return True


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:MAX_REASON]
