"""Keep streaming queries running: a failed one is started again, later each time."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from mqlake.clock import Clock
from mqlake.errors import LogError
from streaming.figures import Watched, progress_of

_logger = logging.getLogger(__name__)

FIRST_BACK_OFF_SECONDS: Final = 1.0
LAST_BACK_OFF_SECONDS: Final = 30.0
STEADY_SECONDS: Final = 60.0
"""A query that ran this long starts again at the first back-off."""
_MAX_REASON: Final = 300


@dataclass(slots=True)
class _Supervised:
    start: Callable[[], StreamingQuery]
    is_wanted: Callable[[], bool]
    query: StreamingQuery | None = None
    started_at: float = 0.0
    retry_at: float = 0.0
    back_off: float = FIRST_BACK_OFF_SECONDS
    restarts: int = 0
    reason: str = ""


class QuerySupervisor:
    """Starts the queries given and starts again what fails.

    Not a thread: `check` does what is due; its caller says when.

    Args:
        clock: For the time between starts.
        jobs: By name, how each query is started.
        wanted: By name, whether a query has anything to do; those not named always have.
    """

    def __init__(
        self,
        clock: Clock,
        jobs: dict[str, Callable[[], StreamingQuery]],
        wanted: dict[str, Callable[[], bool]] | None = None,
    ) -> None:
        self._clock = clock
        self._jobs = {
            name: _Supervised(start, (wanted or {}).get(name, lambda: True))
            for name, start in jobs.items()
        }

    def check(self) -> None:
        """Start what is due and notice what has failed."""
        now = self._clock.monotonic()
        for name, job in self._jobs.items():
            if job.query is not None and not job.query.isActive:
                if now - job.started_at >= STEADY_SECONDS:
                    job.back_off = FIRST_BACK_OFF_SECONDS
                error = job.query.exception()
                self._failed(name, job, "it stopped by itself" if error is None else str(error))
            if not job.is_wanted():
                self._rest(name, job)
            elif job.query is None and now >= job.retry_at:
                try:
                    job.query = job.start()
                except (PySparkException, Py4JError, LogError) as error:
                    self._failed(name, job, str(error))
                else:
                    job.started_at = now
                    _logger.info("query started", extra={"fields": {"query": name}})

    def _rest(self, name: str, job: _Supervised) -> None:
        job.reason = ""
        if job.query is not None:
            self._stop(name, job)
            _logger.info("query has nothing to do", extra={"fields": {"query": name}})

    def trouble(self) -> str:
        """Say which queries do not run and why; empty when all do."""
        return "; ".join(
            f"query {name} failed and is started again: {job.reason}"
            for name, job in self._jobs.items()
            if job.query is None and job.reason
        )

    def is_processing(self, name: str) -> bool:
        """Tell whether a query is in a batch or has finished one."""
        query = self._jobs[name].query
        if query is None:
            return False
        return bool(query.status["isTriggerActive"]) or query.lastProgress is not None

    def watched(self, checkpoints: Path, real_time: frozenset[str]) -> list[Watched]:
        """Return the queries to be looked at; from any thread.

        Args:
            checkpoints: Holds a folder for each.
            real_time: Names of those that run so.
        """
        return [
            Watched(
                name,
                progress_of(job.query),
                checkpoints / name,
                job.restarts,
                name in real_time,
            )
            for name, job in self._jobs.items()
        ]

    def stop(self) -> None:
        """Stop all queries, in the order given; what cannot be stopped is logged."""
        for name, job in self._jobs.items():
            if job.query is not None:
                self._stop(name, job)

    def _stop(self, name: str, job: _Supervised) -> None:
        assert job.query is not None
        try:
            job.query.stop()
        except (PySparkException, Py4JError) as error:
            _logger.warning(
                "query did not stop",
                extra={"fields": {"query": name, "reason": _first_line(str(error))}},
            )
        job.query = None

    def _failed(self, name: str, job: _Supervised, reason: str) -> None:
        job.query = None
        job.reason = _first_line(reason)
        job.restarts += 1
        job.retry_at = self._clock.monotonic() + job.back_off
        _logger.error(
            "query failed",
            extra={
                "fields": {
                    "query": name,
                    "again_in_seconds": job.back_off,
                    "reason": reason[: 10 * _MAX_REASON],
                }
            },
        )
        job.back_off = min(job.back_off * 2, LAST_BACK_OFF_SECONDS)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:_MAX_REASON]
