"""Common part of router and lake: a JVM with Spark, queries that are kept running, an end."""

import logging
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, Final, NamedTuple

from pyspark.sql import SparkSession

from mqlake.clock import Clock
from mqlake.errors import LogError, MqlakeError
from mqlake.log.admin import LogAdmin
from mqlake.logs import set_up_logging
from mqlake.processes.heart import Heart
from mqlake.processes.heartbeat import INTERVAL_SECONDS
from streaming.application.figures import QueryFigures, Watched, read_heap, read_positions
from streaming.application.poison import PoisonGuard
from streaming.application.supervision import QuerySupervisor
from streaming.engine.calendar_watch import CalendarWatch
from streaming.jvm.bridge import CALL_LOGGER, JvmError
from streaming.jvm.process import Jvm
from streaming.log.log_topics import partition_counts
from streaming.log.sinks import read_undelivered, undelivered_figures
from streaming.log.sources import client_config
from streaming.settings.spark import StreamingSettings

_logger = logging.getLogger(__name__)

LOCK_TIMEOUT_SECONDS: Final = 30.0
END_SECONDS: Final = 3.0
"""How long an end in order may take. Then Java is killed: work under way is done again."""
_WRITES_ARCHIVE: Final = "writes the archive of Java's classes, this once"


class StoppedEarly(BaseException):
    """A signal to stop came while Spark starts: nothing runs yet that needs an orderly end."""


class Stop:
    """Handler of SIGTERM and SIGINT: ends the start-up at once, later asks the main loop to end.

    Attributes:
        asked: Set when it is to end.
        starting: Nothing needs an orderly end yet.
    """

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.starting = True

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.asked.set()
        if self.starting:
            self.starting = False
            raise StoppedEarly


class Look(NamedTuple):
    """How an application is."""

    healthy: bool
    detail: str
    figures: dict[str, Any]
    waits: bool = False
    """It looks again soon, though it is well."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Spark while it runs, and the threads that look after it."""

    settings: StreamingSettings
    spark: SparkSession
    jvm: Jvm
    guard: PoisonGuard
    heart: Heart
    stop: Stop
    clock: Clock

    @property
    def stopping(self) -> threading.Event:
        return self.stop.asked

    def begin(self, name: str, work: Callable[..., object], *more: object) -> None:
        """Have something done in a thread; a daemon: its work is done again another time."""
        threading.Thread(target=work, args=(*more, self.stopping), name=name, daemon=True).start()

    def await_log(self, log_topics: tuple[str, ...]) -> dict[str, int]:
        """Wait until the log has its topics; return how many partitions each has."""
        while True:
            try:
                counts = partition_counts(self.spark, client_config(self.settings), log_topics)
            except LogError as error:
                detail = str(error)
            else:
                missing = [log_topic for log_topic in log_topics if log_topic not in counts]
                if not missing:
                    return counts
                detail = f"waiting for log topics: {', '.join(missing)}"
            self.heart.beat(healthy=False, detail=detail)
            time.sleep(INTERVAL_SECONDS / 2)

    def figures(self, watched: Callable[[], list[Watched]]) -> QueryFigures:
        """Return the reader of the figures of queries, which has a thread of its own."""
        found = QueryFigures(
            self.clock,
            watched,
            LogAdmin(self.settings.log.servers).ends,
            partial(read_positions, self.spark),
            partial(read_heap, self.spark),
            partial(read_undelivered, self.spark),
        )
        self.begin("figures", found.run)
        return found

    def watch(
        self,
        queries: QuerySupervisor,
        measured: QueryFigures,
        look: Callable[[str], Look],
        archive_after: float | None = None,
    ) -> int:
        """Keep the queries running, and say how they are, until a signal to stop.

        Args:
            queries: Queries of the application.
            measured: Reads their measured values.
            look: Gets their trouble; does its work about once a second, and returns
                how the application is.
            archive_after: Seconds after which Java writes the archive of its classes, unless
                there is one; None: never.

        Returns:
            The exit code; not 0 when Java has ended.
        """
        figures: dict[str, Any] = {}
        archive_at = math.inf if archive_after is None else self.clock.monotonic() + archive_after
        while not self.stopping.is_set():
            if self.jvm.process.poll() is not None:
                _logger.error(
                    "java ended", extra={"fields": {"exit_code": self.jvm.process.returncode}}
                )
                return 1
            if self.clock.monotonic() >= archive_at:
                self._write_archive(figures)
                archive_at = math.inf
            queries.check()
            healthy, detail, more, waits = look(queries.trouble())
            waiting = undelivered_figures(measured.undelivered, self.clock.now_ms())
            figures = {
                "java_pid": self.jvm.process.pid,
                "queries": measured.latest,
                "undelivered": waiting,
                **measured.heap.figures,
                **more,
            }
            if waiting:
                records = sum(one["records"] for one in waiting.values())
                detail += f"; {records} records wait for brokers that are away: bin/mqlake doctor"
            self.heart.beat(healthy=healthy, detail=detail, figures=figures)
            is_calm = healthy and not waits
            self.stopping.wait(INTERVAL_SECONDS if is_calm else INTERVAL_SECONDS / 5)
        self.heart.beat(healthy=False, detail="stopping", figures=figures)
        # A batch that is refused from here on is no error to report.
        CALL_LOGGER.setLevel(logging.CRITICAL)
        return 0

    def _write_archive(self, figures: dict[str, Any]) -> None:
        """Have Java write the archive of its classes: for seconds it does nothing else."""
        archive = self.jvm.archive
        if archive is None or archive.is_written:
            return

        def write() -> None:
            try:
                archive.write(self.jvm.process.pid)
            except (MqlakeError, OSError) as error:
                _logger.warning("no archive", extra={"fields": {"reason": str(error)}})

        writing = threading.Thread(target=write, name="archive", daemon=True)
        writing.start()
        while writing.is_alive() and not self.stopping.is_set():
            self.heart.beat(healthy=True, detail=_WRITES_ARCHIVE, figures=figures)
            writing.join(INTERVAL_SECONDS)


def run(settings: StreamingSettings, heart: Heart, begin: Callable[[Stop], int]) -> int:
    """Run an application until SIGTERM or SIGINT; return the exit code.

    Args:
        settings: Settings of the application.
        heart: Says how it is.
        begin: Starts it, and returns when it has ended.

    Raises:
        OperationalError: The machine or the settings do not allow it to run.
    """
    set_up_logging(settings.log_level, settings.log_file, settings.log_format, heart.name)
    _leave_out_pandas()
    CALL_LOGGER.setLevel(logging.WARNING)
    stop = Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        return begin(stop)
    except StoppedEarly:
        return 0
    finally:
        heart.beat(healthy=False, detail="stopped")


def _leave_out_pandas() -> None:
    """Have pyspark do without pandas and pyarrow, which it imports where it can.

    Nothing here converts by them, and they take 80 MB of each application and most of a second
    (docs/design/operation.md).
    """
    for name in ("pandas", "pyarrow"):
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def run_engine(
    settings: StreamingSettings,
    start: Callable[[], tuple[SparkSession, Jvm]],
    guard: PoisonGuard,
    heart: Heart,
    stop: Stop,
    clock: Clock,
    work: Callable[[Engine], int],
) -> int:
    """Start Spark, do the work, and end it; return the exit code.

    Raises:
        OperationalError: It does not start.
    """
    # Before the JVM: it may be set while Spark starts.
    calendar = CalendarWatch(clock)
    with heart.during("starting Spark"):
        spark, jvm = start()
    watch = partial(calendar.run, jvm.kill, stop.asked)
    threading.Thread(target=watch, name="calendar", daemon=True).start()
    threading.Thread(target=_limit_end, args=(stop, jvm), name="end", daemon=True).start()
    code = 1
    try:
        guard.open(spark)
        code = work(Engine(settings, spark, jvm, guard, heart, stop, clock))
    except StoppedEarly:
        code = 0
        raise
    except (JvmError, OSError):
        if not stop.asked.is_set():
            raise
        code = 0  # the end took too long
    finally:
        jvm.kill()
        if code == 0:
            guard.close()
    return code


def _limit_end(stop: Stop, jvm: Jvm) -> None:
    """Kill Java when the end takes too long; callers that wait for it go on then."""
    stop.asked.wait()
    try:
        jvm.process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        _logger.warning("the end took too long, so Java is killed")
        # Unanswered calls of Java are logged by the root logger itself, and only they are.
        logging.getLogger().addFilter(lambda _record: False)
        jvm.kill()
