"""Run checked queries: a few at once, each in a session that Spark keeps for such.

A session does its work in few tasks and knows no files as tables. Queries name no table there, but
relations that come with them (`rules.sql.confined`).
"""

import contextlib
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from api.relations.views import CATALOG_SCHEMA, TOPIC_LEVEL, TOPIC_MATCHES
from api.spark.connect import (
    Cancelled,
    EvaluationError,
    OutOfMemory,
    Spark,
    SparkConnect,
    SparkEnded,
    sentence,
)
from api.spark.kept_sessions import KeptSessions
from api.sql.brake import Brake
from api.sql.checking import CheckedQuery
from api.sql.direct.reader import TableFiles
from api.sql.errors import (
    QueryError,
    QueryMemoryError,
    QueryTimeoutError,
    QueryTooLargeError,
)
from api.sql.places import place_of, place_of_name
from api.sql.results import Format, Result, ResultColumn
from api.sql.room import NoRoomError, ResultRoom, Share
from api.sql.slots import FairSlots
from mqlake.errors import MqlakeError, OperationalError
from mqlake.processes.query_application import Use
from mqlake.records.rule_tables import shown_name
from rules.sql.functions import QUERY_FUNCTIONS

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.types import DataType

SESSION_SETTINGS: Final = {
    # Two tasks read a table, however many files it has: there are slots for many more, and each
    # would be a thread that competes with the router's.
    "spark.sql.files.minPartitionNum": "2",
    "spark.sql.files.maxPartitionBytes": "4g",
    # More sorted rows than this are sorted on disk, not kept in a queue in memory.
    "spark.sql.execution.topKSortFallbackThreshold": "10000",
    "spark.sql.autoBroadcastJoinThreshold": "4m",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
FUNCTIONS: Final = QUERY_FUNCTIONS | {
    f"{CATALOG_SCHEMA}.{name}" for name in (TOPIC_MATCHES, TOPIC_LEVEL)
}
"""As Spark knows them."""
_ROW_GROUP_BYTES: Final = 4 * 1024 * 1024
MOST_IDLE: Final = 2
"""Sessions that are kept; more are opened when more ask at once."""
SPARK_LIMIT_SECONDS: Final = 3_600.0
_SIZE_CHECK_SECONDS: Final = 0.5
_RULE_TABLE: Final = re.compile(r"`(rule__\w+)`")
_INCOMPARABLE: Final = "values of type VARIANT, as in `payload`, cannot be compared"
_LOOK_SECONDS: Final = 0.1
"""How often a query that waits for its second turn looks whether it is wanted still."""
_LEFT_SECONDS: Final = 6 * 3_600.0
"""A result is not read for so long."""


class TooManyQueriesError(OperationalError):
    """As many run as may."""


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """Limits of one query: rows of its result, seconds, bytes of its result on disk."""

    rows: int
    seconds: float
    bytes: int


class QueryRunner:
    """Runs queries; safe to use from any thread.

    Args:
        connect: Opens sessions.
        files: Answers small questions, without Spark.
        folder: Folder for results; emptied at the first query. Spark, which writes them, sees it
            too.
        at_once: Queries that run at the same time; tenants share them fairly.
        wait_seconds: Longest wait for one of them to end.
        most_bytes: Bound of one result; the bound of all results follows from it.
    """

    def __init__(
        self,
        connect: SparkConnect,
        files: TableFiles,
        folder: Path,
        at_once: int,
        wait_seconds: float = 5.0,
        most_bytes: int = 1 << 30,
    ) -> None:
        self._connect = connect
        self._files = files
        self._folder = folder.absolute()
        self._slots = FairSlots(at_once)
        self._wait_seconds = wait_seconds
        self._lock = threading.Lock()
        self._second_turn = threading.Lock()
        self._brake = Brake()
        self._room = ResultRoom(most_bytes)
        self._sessions = KeptSessions(self._open, MOST_IDLE, _is_harmless)
        self._is_ready = False

    @contextmanager
    def run(
        self,
        query: CheckedQuery,
        form: Format,
        limits: QueryLimits,
        is_cancelled: Callable[[], bool] = lambda: False,
        *,
        caller: str = "",
    ) -> Iterator[Result]:
        """Run a query; its result is there until the block ends.

        Args:
            query: Checked.
            form: That the result will be written in.
            limits: Limits of the query.
            is_cancelled: Asked now and then; True ends it.
            caller: Who asks; empty: the system itself.

        Raises:
            EndsSparkError: The caller's queries have ended Spark too often.
            NoRoomError: Results that are there leave no room for this one.
            QueryError: Spark refuses it, it fails, or takes too long.
            Cancelled: It is not wanted any more.
            TooManyQueriesError: As many as may run already.
            SparkAway: Spark does not answer.
        """
        self._brake.check(caller)
        with self._room.share(query.tenant, caller) as share:
            target = self._new_folder()
            try:
                if not self._slots.acquire(query.tenant, self._wait_seconds):
                    raise TooManyQueriesError("as many queries as may are running: try again later")
                try:
                    work = _Work(query, form, limits, is_cancelled, target / "rows", caller, share)
                    result = self._run(work, is_cancelled)
                finally:
                    # Not when the result is gone: a replay reads its own for hours.
                    self._slots.release(query.tenant)
                yield result
            finally:
                shutil.rmtree(target, ignore_errors=True)

    def close(self) -> None:
        self._sessions.close()
        self._files.close()

    def _new_folder(self) -> Path:
        with self._lock:
            if not self._is_ready:
                # Files there are of a process that was killed.
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._is_ready = True
        oldest = time.time() - _LEFT_SECONDS
        for left in self._folder.iterdir():
            # Of an answer that was given up before it began.
            with contextlib.suppress(OSError):
                if left.stat().st_mtime < oldest:
                    shutil.rmtree(left, ignore_errors=True)
        return Path(tempfile.mkdtemp(dir=self._folder))

    def _run(self, work: "_Work", is_cancelled: Callable[[], bool]) -> Result:
        found = work.read(self._files)
        if found is not None:
            return found
        try:
            return self._ask(work, is_cancelled)
        except SparkEnded:
            # One of those that ran has ended it. Each is asked once more, one after the other, so
            # it fails by itself, and no query of anybody else by it.
            with work.holding(self._second_turn):
                return self._ask(work, is_cancelled)

    def _ask(self, work: "_Work", is_cancelled: Callable[[], bool]) -> Result:
        with self._connect.use(is_cancelled=is_cancelled) as use:
            try:
                with self._sessions.lend(use) as session:
                    return work.run(session)
            except MqlakeError as exc:
                is_proven = use.has_ended_it or isinstance(exc, QueryMemoryError)
                if is_proven or (isinstance(exc, SparkEnded) and exc.by_memory):
                    self._brake.note(work.caller, use.java_pid, is_proven=is_proven)
                raise

    def _open(self, use: Use) -> Spark:
        return self._connect.open(SESSION_SETTINGS, use, FUNCTIONS)


def _is_harmless(error: Exception) -> bool:
    """Tell whether the session of a query that has ended so is as it was."""
    is_own = isinstance(error, QueryError | Cancelled | NoRoomError)
    return is_own and not isinstance(error, QueryMemoryError)


class _Work:
    """One query on its way."""

    def __init__(
        self,
        query: CheckedQuery,
        form: Format,
        limits: QueryLimits,
        is_cancelled: Callable[[], bool],
        target: Path,
        caller: str,
        share: Share,
    ) -> None:
        self.caller = caller
        self._share = share
        self._query = query
        self._form = form
        self._limits = limits
        self._is_cancelled = is_cancelled
        self._target = target
        self._sql = query.sql
        self._ends_at = time.monotonic() + limits.seconds
        self._sized_at = 0.0
        self._is_late = False
        self._is_too_large = False
        self._no_room: NoRoomError | None = None

    def run(self, session: Spark) -> Result:
        try:
            found = session.perform(self._do, SPARK_LIMIT_SECONDS, is_cancelled=self._is_unwanted)
            self._share.grow(_size(self._target))
            return found
        except Cancelled as exc:
            self._tell_why(exc)
            raise
        except OutOfMemory as exc:
            hint = "read fewer rows, or make smaller values"
            raise QueryMemoryError(str(exc), hint=hint) from exc
        except EvaluationError as exc:
            cause = exc.__cause__
            assert isinstance(cause, Exception)
            detail = readable(cause)
            text = self._query.text
            place = place_of(cause, self._sql)
            if place is None:
                place = place_of_name(detail, text)
            raise QueryError.at(text, place, len(text), detail, _hint(detail)) from exc

    def read(self, files: TableFiles) -> Result | None:
        """Return what the files of a table answer; None: the query is for Spark."""
        question = self._query.question
        if question is None:
            return None
        columns = tuple(
            ResultColumn(one.name, one.type, _is_json(one.type, self._form))
            for one in question.columns
        )
        if any(_is_nested(one.type) and not one.is_json for one in columns):
            return None  # an answer has such values as JSON
        self._target.mkdir()
        file = self._target / "part-0.parquet"
        try:
            found = files.answer(question, self._limits.rows + 1, file, self._is_unwanted)
        except Cancelled as exc:
            self._tell_why(exc)
            raise
        if found is None:
            shutil.rmtree(self._target)
            return None
        self._share.grow(_size(self._target))
        return self._result(columns)

    @contextmanager
    def holding(self, lock: threading.Lock) -> Iterator[None]:
        """Hold a lock for the length of a `with` block.

        Raises:
            QueryError: It came too late.
            Cancelled: The query is not wanted any more.
        """
        while not lock.acquire(timeout=_LOOK_SECONDS):
            try:
                self._check()
            except Cancelled as exc:
                self._tell_why(exc)
                raise
        try:
            yield
        finally:
            lock.release()

    def _tell_why(self, exc: Cancelled) -> None:
        """Raise the reason that it was cancelled for, if the caller did not cancel it."""
        if self._is_late:
            seconds = f"{self._limits.seconds:g}"
            raise QueryTimeoutError(f"the query took longer than {seconds} s") from exc
        if self._is_too_large:
            raise QueryTooLargeError(
                f"the result has more than {self._limits.bytes} bytes",
                hint="select fewer columns or rows",
            ) from exc
        if self._no_room is not None:
            raise self._no_room from exc

    def _is_unwanted(self) -> bool:
        now = time.monotonic()
        self._is_late = self._is_late or now > self._ends_at
        if now - self._sized_at > _SIZE_CHECK_SECONDS:
            self._sized_at = now
            size = _size(self._target)
            self._is_too_large = self._is_too_large or size > self._limits.bytes
            try:
                self._share.grow(size)
            except NoRoomError as exc:
                self._no_room = exc
        is_ours = self._is_late or self._is_too_large or self._no_room is not None
        return is_ours or self._is_cancelled()

    def _do(self, spark: "SparkSession") -> Result:
        schema = spark.sql(self._query.confined(self._sql).text).schema
        self._check()
        columns, expressions = [], []
        for number, found in enumerate(schema.fields):
            expression, is_json = _stored(found.dataType, f"c{number}", self._form)
            expressions.append(f"{expression} AS c{number}")
            columns.append(ResultColumn(found.name, found.dataType.simpleString(), is_json))
        names = ", ".join(f"c{number}" for number in range(len(columns)))
        self._sql = (
            f"SELECT {', '.join(expressions)} FROM ({self._query.sql}) AS result({names})"  # noqa: S608
            f" LIMIT {self._limits.rows + 1:d}"
        )
        frame = spark.sql(self._query.confined(self._sql).text)
        self._check()
        (
            frame.write.mode("overwrite")
            .option("parquet.block.size", str(_ROW_GROUP_BYTES))
            .option("compression", "snappy")
            .parquet(str(self._target))
        )
        return self._result(tuple(columns))

    def _check(self) -> None:
        if self._is_unwanted():
            raise Cancelled("cancelled")

    def _result(self, columns: tuple[ResultColumn, ...]) -> Result:
        import pyarrow.parquet as pq

        files = tuple(sorted(self._target.glob("part-*.parquet")))
        found = sum(pq.read_metadata(path).num_rows for path in files)
        shown = min(found, self._limits.rows)
        return Result(columns, files, shown, found > self._limits.rows)


def _stored(type_: "DataType", name: str, form: Format) -> tuple[str, bool]:
    """Return the expression of a column in the result, and whether that is JSON."""
    kind = type_.simpleString()
    if _is_json(kind, form):
        options = "map('ignoreNullFields', 'false')"
        return f"to_json({name}, {options})", True
    if kind.startswith(("interval", "time(")) or kind == "void":
        return f"CAST({name} AS STRING)", False
    return name, False


def _is_json(kind: str, form: Format) -> bool:
    """Tell whether values of a type are written as JSON."""
    return kind == "variant" or (_is_nested(kind) and (form != "parquet" or "variant" in kind))


def _is_nested(kind: str) -> bool:
    return kind.startswith(("struct<", "array<", "map<"))


def _hint(detail: str) -> str:
    """Return advice where Spark gives none, or one that users cannot follow."""
    if "DELTA_TIMESTAMP_GREATER_THAN_COMMIT" in detail:
        return "the table has not changed since: leave TIMESTAMP AS OF out"
    if detail == _INCOMPARABLE:
        return "use payload_text, or a field and its type: payload:temp::double"
    return ""


def _size(folder: Path) -> int:
    total = 0
    with contextlib.suppress(OSError):
        for path in folder.rglob("*"):
            with contextlib.suppress(OSError):
                total += path.stat().st_size
    return total


def readable(error: Exception) -> str:
    """Reduce an error of Spark's to a sentence without our comments and names."""
    from api.sql.dialect import PLACE

    detail = PLACE.sub("", sentence(error)).replace("`spark_catalog`.`default`.", "")
    detail = _RULE_TABLE.sub(lambda found: f"`{shown_name(found[1])}`", detail)
    if "FAILED_READ_FILE" in detail:
        return "a file of a table cannot be read"  # Spark tells where it is on this machine
    if "MatchError" in detail and "VariantVal" in detail:
        return _INCOMPARABLE  # Spark looks for that in GROUP BY, not in DISTINCT of an aggregate
    return detail
