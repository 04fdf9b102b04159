"""Keeps a query running for each version of a stateful rule, until its version is over.

Starting a query takes a second, so this has a thread of its own. A query that fails is started
again, later each time; when the rule fails, and not the log, it is paused after a few times.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from mqlake.clock import Clock
from mqlake.errors import LogError
from mqlake.records.rules import LeftUnread
from rules.errors import RuleError
from streaming.application.figures import Watched, progress_of
from streaming.application.supervision import (
    FIRST_BACK_OFF_SECONDS,
    LAST_BACK_OFF_SECONDS,
    MAX_REASON,
    first_line,
)
from streaming.jvm.bridge import JvmError
from streaming.rules.plans import StatefulRun

logger = logging.getLogger(__name__)

CHECK_SECONDS: Final = 0.25
MOST_FAILURES: Final = 4
"""In a row, without a finished batch between them; then the rule is paused."""
STANDSTILL_SECONDS: Final = 3600.0
"""A version that is out of force is given up when its query has got no further for so long. One
batch takes all that there was when it began, which may be hours of messages."""
SECONDS_PER_RUN: Final = 0.5
"""The interval is at least so long for each run: all of them together leave processors free."""
_LOG_AWAY: Final = "the log did not take"
"""As Java says of a record that it could not send."""


class RunStore(Protocol):
    """Store of runs."""

    def has_done(self, run: StatefulRun) -> bool: ...

    def reached(self, run: StatefulRun) -> object: ...

    def note_try(self, run: StatefulRun) -> int: ...

    def forget_tries(self, name: str) -> None: ...

    def unread(self, run: StatefulRun) -> dict[str, dict[int, tuple[int, int]]]: ...

    def end(self, name: str, unread: LeftUnread | None) -> None: ...

    def fail(self, name: str, reason: str) -> None: ...

    def is_ended(self, name: str) -> bool: ...

    def forget(self, known: set[str]) -> None: ...


Start = Callable[[StatefulRun, float], StreamingQuery]
"""Starts the query of a run with an interval in seconds."""
Tell = Callable[[StatefulRun, LeftUnread], None]
"""Tells of a run that is given up, and returns when that is safe."""


@dataclass(slots=True)
class _Kept:
    run: StatefulRun
    query: StreamingQuery | None = None
    started_at: float = 0.0
    retry_at: float = 0.0
    back_off: float = FIRST_BACK_OFF_SECONDS
    failures: int = 0
    restarts: int = 0
    reason: str = ""
    reached: object = None
    moved_at: float = 0.0
    is_tried: bool = False
    """This process has begun it since its version is out of force."""
    is_given_up: bool = False


class Runs:
    """Starts and stops queries as `wanted` says.

    Args:
        clock: For the time between starts.
        wanted: Returns all runs there are; None while that is not known.
        start: Starts the query of one.
        store: Store of their state; learns of a run whose rule fails, and why.
        interval_seconds: From one batch to the next, at least.
        tell: Reports a run that ends before it has done all that it was to do. It may raise
            LogError; then it is called again later.
    """

    def __init__(
        self,
        clock: Clock,
        wanted: Callable[[], tuple[StatefulRun, ...] | None],
        start: Start,
        store: RunStore,
        interval_seconds: float,
        tell: Tell,
    ) -> None:
        self._clock = clock
        self._wanted = wanted
        self._start = start
        self._store = store
        self._interval_seconds = interval_seconds
        self._tell = tell
        self._kept: dict[str, _Kept] = {}
        self._known: set[str] | None = None
        self._again: set[str] = set()
        self._figures: dict[str, Any] = {}

    def run(self, stopping: threading.Event) -> None:
        """Check until `stopping` is set, then stop all queries; for a thread of its own."""
        while not stopping.wait(CHECK_SECONDS):
            try:
                self.check(stopping.is_set)
            except Exception:
                if stopping.is_set():
                    break
                # Even when something is wrong with one, the others must go on.
                logger.exception("stateful rules not checked")
        for kept in self._kept.values():
            self._stop(kept)
            if kept.is_tried:
                self._store.forget_tries(kept.run.name)

    def check(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Start due runs, notice failed ones, end those that are over."""
        wanted = self._wanted()
        if wanted is None:
            return
        runs = {run.name: run for run in wanted}
        for name in [name for name in self._kept if name not in runs]:
            self._stop(self._kept.pop(name))
        if self._known != runs.keys():
            self._known = set(runs)
            self._store.forget(self._known)
        for name, run in runs.items():
            kept = self._kept.get(name)
            if kept is None:
                if self._store.is_ended(name):
                    continue
                kept = self._kept[name] = _Kept(run)
            kept.run = run
            if not is_stopping():
                self._check(kept)
        self._figures = {name: self._figure(kept) for name, kept in self._kept.items()}

    def restart(self, name: str) -> None:
        """Have a query read its present partitions; from any thread."""
        self._again.add(name)

    def running(self) -> list[StatefulRun]:
        """Return the runs whose queries run; from any thread."""
        return [kept.run for kept in list(self._kept.values()) if kept.query is not None]

    def figures(self) -> dict[str, Any]:
        """Return rule, version, batch and restarts of each run."""
        return self._figures

    def watched(self, checkpoints: Path) -> list[Watched]:
        """Return the queries to be looked at; from any thread.

        Args:
            checkpoints: Holds a folder for each.
        """
        return [
            Watched(
                name,
                progress_of(kept.query),
                checkpoints / name,
                kept.restarts,
                more={
                    "tenant": kept.run.tenant,
                    "rule": kept.run.rule,
                    "version": kept.run.span.version,
                },
            )
            for name, kept in list(self._kept.items())
        ]

    def _check(self, kept: _Kept) -> None:
        now = self._clock.monotonic()
        if kept.run.name in self._again:
            self._again.discard(kept.run.name)
            self._stop(kept)
        if kept.query is not None:
            if not kept.query.isActive:
                error = kept.query.exception()
                self._failed(kept, "it stopped by itself" if error is None else str(error))
            elif kept.failures and kept.query.lastProgress is not None:
                kept.failures = 0
                kept.back_off = FIRST_BACK_OFF_SECONDS
                kept.reason = ""
        if kept.run.span.is_ended and self._is_over(kept, now):
            self._end(kept, now)
        elif kept.query is None and not kept.is_given_up and now >= kept.retry_at:
            self._begin(kept, now)

    def _is_over(self, kept: _Kept, now: float) -> bool:
        if kept.is_given_up or self._store.has_done(kept.run):
            return True
        reached = self._store.reached(kept.run)
        if (
            kept.query is None or reached != kept.reached
        ):  # it waits for the log, or has got further
            kept.reached, kept.moved_at = reached, now
        if now - kept.moved_at <= STANDSTILL_SECONDS:
            return False
        self._give_up(kept, f"no batch was finished for {STANDSTILL_SECONDS / 60:.0f} minutes")
        return True

    def _end(self, kept: _Kept, now: float) -> None:
        self._stop(kept)
        unread = None
        if not self._store.has_done(kept.run):
            if now < kept.retry_at:
                return
            span = kept.run.span
            offsets = self._store.unread(kept.run)
            unread = LeftUnread(
                span.version, span.change, self._clock.now_ms(), kept.reason, offsets
            )
            try:
                self._tell(kept.run, unread)
            except LogError as error:
                fields = {"run": kept.run.name, "reason": str(error)}
                logger.warning(
                    "unread records of a rule were not reported", extra={"fields": fields}
                )
                kept.retry_at = now + LAST_BACK_OFF_SECONDS
                return
        self._store.end(kept.run.name, unread)
        del self._kept[kept.run.name]

    def _begin(self, kept: _Kept, now: float) -> None:
        if kept.run.span.is_ended and not kept.is_tried:
            kept.is_tried = True
            if self._store.note_try(kept.run) > MOST_FAILURES:
                self._give_up(kept, f"its query has ended the lake {MOST_FAILURES} times")
                return
        interval = max(self._interval_seconds, SECONDS_PER_RUN * len(self._known or ()))
        try:
            kept.query = self._start(kept.run, interval)
        except RuleError as error:
            self._give_up(kept, str(error))
        except LogError as error:
            self._failed(kept, f"{_LOG_AWAY} a request: {error}")
        except (PySparkException, JvmError) as error:
            self._failed(kept, str(error))
        else:
            kept.started_at = now
            fields = {"rule": kept.run.rule, "version": kept.run.span.version, "run": kept.run.name}
            logger.info("stateful rule started", extra={"fields": fields})

    def _failed(self, kept: _Kept, reason: str) -> None:
        kept.query = None
        kept.reason = first_line(reason)
        kept.restarts += 1
        kept.retry_at = self._clock.monotonic() + kept.back_off
        fields = {
            "rule": kept.run.rule,
            "run": kept.run.name,
            "again_in_seconds": kept.back_off,
            "reason": reason[: 10 * MAX_REASON],
        }
        logger.error("stateful rule failed", extra={"fields": fields})
        kept.back_off = min(kept.back_off * 2, LAST_BACK_OFF_SECONDS)
        if not _is_of_the_log(reason):
            kept.failures += 1
            if kept.failures >= MOST_FAILURES:
                self._give_up(kept, kept.reason)

    def _give_up(self, kept: _Kept, reason: str) -> None:
        if not kept.run.span.is_ended:
            self._store.fail(kept.run.name, f"paused: its query fails: {reason}")
        kept.is_given_up = True
        kept.reason = reason

    def _stop(self, kept: _Kept) -> None:
        if kept.query is None:
            return
        try:
            kept.query.stop()
        except (PySparkException, JvmError) as error:
            fields = {"run": kept.run.name, "reason": first_line(str(error))}
            logger.warning("query did not stop", extra={"fields": fields})
        kept.query = None

    def _figure(self, kept: _Kept) -> dict[str, Any]:
        return {
            "tenant": kept.run.tenant,
            "rule": kept.run.rule,
            "version": kept.run.span.version,
            "active": kept.query is not None,
            "restarts": kept.restarts,
            "reason": kept.reason,
        }


def _is_of_the_log(reason: str) -> bool:
    """Tell whether it is the log that was away, which is no fault of the rule."""
    return "kafka" in reason.lower() or _LOG_AWAY in reason
