"""Ask Spark through Spark Connect: sessions of the running streaming application.

The client library takes seconds to load and 100 MB of memory: not before somebody asks.
"""

import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mqlake.errors import MqlakeError, OperationalError
from mqlake.status import read_state
from mqlake.views import EMPTY_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

TOKEN_FILE: Final = "connect-token"  # noqa: S105 - the name of the file
CONNECT_TIMEOUT_SECONDS: Final = 3.0
QUERY_TIMEOUT_SECONDS: Final = 20.0

_CHECK_SECONDS: Final = 0.2
"""How often somebody looks whether a query is no longer wanted."""

Row = dict[str, Any]
Result = TypeVar("Result")


class EvaluationError(MqlakeError):
    """Spark has tried a query and an expression in it failed; the message is for people."""


class Cancelled(MqlakeError):  # noqa: N818 - it is what was asked for
    """The query was no longer wanted."""


class SparkAway(OperationalError):  # noqa: N818
    """Spark does not answer."""


class Spark:
    """A session; one query at a time.

    Args:
        session: Stopped by `close`.
    """

    def __init__(self, session: "SparkSession") -> None:
        self._session = session
        self._progress: Callable[[float], None] | None = None
        handler: Any = self._report  # any callable will do
        session.registerProgressHandler(handler)

    def rows(
        self,
        query: str,
        timeout_seconds: float = QUERY_TIMEOUT_SECONDS,
        *,
        progress: Callable[[float], None] | None = None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> list[Row]:
        """Return what a query gives.

        Args:
            query: SQL made by us, never as a user wrote it.
            timeout_seconds: After that it is interrupted.
            progress: Told now and then which share of the tasks is done.
            is_cancelled: Asked now and then; True interrupts the query.

        Raises:
            EvaluationError: An expression failed.
            Cancelled: It was interrupted.
            SparkAway: Spark does not answer, or not in time.
        """

        def ask(session: "SparkSession") -> list[Row]:
            found: list[Row] = session.sql(query).toArrow().to_pylist()
            return found

        return self.perform(ask, timeout_seconds, progress=progress, is_cancelled=is_cancelled)

    def perform(
        self,
        work: "Callable[[SparkSession], Result]",
        timeout_seconds: float = QUERY_TIMEOUT_SECONDS,
        *,
        progress: Callable[[float], None] | None = None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> Result:
        """Do something with the session; see `rows`.

        Raises:
            EvaluationError: Spark refuses or fails; its cause is what the client library raised.
            Cancelled: It was interrupted.
            SparkAway: Spark does not answer, or not in time.
        """
        from grpc import RpcError
        from pyspark.errors import PySparkException

        done = threading.Event()
        late = threading.Event()
        watch = threading.Thread(
            target=self._watch, args=(done, late, timeout_seconds, is_cancelled), daemon=True
        )
        self._progress = progress
        watch.start()
        try:
            result = work(self._session)
        except PySparkException as exc:
            if late.is_set():
                raise SparkAway(f"Spark did not answer within {timeout_seconds:g} s") from exc
            if is_cancelled():
                raise Cancelled("cancelled") from exc
            # The client closes a session itself when it finds that Spark is another one.
            if self._session.is_stopped or _is_away(exc):
                raise SparkAway(f"Spark does not answer: {sentence(exc)}") from exc
            raise EvaluationError(sentence(exc)) from exc
        except RpcError as exc:
            raise SparkAway("Spark does not answer; see: bin/mqlake status") from exc
        else:
            return result
        finally:
            done.set()
            self._progress = None

    def is_there(self) -> bool:
        """Tell whether Spark has the session still: it may be another, or have thrown it away."""
        try:
            self.perform(lambda session: session.conf.get("spark.sql.session.timeZone"))
        except SparkAway:
            return False
        return True

    def configure(self, settings: Mapping[str, str]) -> None:
        for key, value in settings.items():
            self._session.conf.set(key, value)

    def close(self) -> None:
        self._session.stop()

    def _watch(
        self,
        done: threading.Event,
        late: threading.Event,
        timeout_seconds: float,
        is_cancelled: Callable[[], bool],
    ) -> None:
        left = timeout_seconds
        while not done.wait(_CHECK_SECONDS):
            left -= _CHECK_SECONDS
            if left <= 0:
                late.set()
            if late.is_set() or is_cancelled():
                try:
                    self._session.interruptAll()
                except Exception:  # noqa: BLE001 - the query's own end says what is wrong
                    return

    def _report(self, stages: Any, inflight_tasks: int, operation_id: Any, done: bool) -> None:
        """Take what the client library calls with, by these names."""
        report = self._progress
        tasks = [(one.num_completed_tasks, one.num_tasks) for one in stages or ()]
        if report is not None and tasks:
            report(sum(one for one, _ in tasks) / max(1, sum(number for _, number in tasks)))


class SparkConnect:
    """Opens sessions, and keeps one for short questions.

    Args:
        data_dir: Of the system: its state says where Spark is, a file in it lets us in.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._lock = threading.Lock()
        self._kept: Spark | None = None
        self._kept_of: tuple[int, str] | None = None

    @contextmanager
    def session(self, settings: Mapping[str, str]) -> Iterator[Spark]:
        """Open a session of its own for a job.

        Raises:
            SparkAway: Spark does not answer.
        """
        spark = self.open(settings)
        try:
            yield spark
        finally:
            spark.close()

    def open(self, settings: Mapping[str, str]) -> Spark:
        """Open a session of its own; whoever has it closes it.

        Raises:
            SparkAway: Spark does not answer.
        """
        spark = self._open(*self._where())
        try:
            spark.configure(settings)
        except Exception:
            spark.close()
            raise
        return spark

    def rows(self, query: str, timeout_seconds: float = QUERY_TIMEOUT_SECONDS) -> list[Row]:
        """Ask in the session that is kept; it is opened again when Spark was away.

        Raises:
            EvaluationError: An expression failed.
            SparkAway: Spark does not answer, or not in time.
        """
        with self._lock:
            where = self._where()
            if self._kept is None or self._kept_of != where or not self._kept.is_there():
                self._forget()
                self._kept, self._kept_of = self._open(*where), where
            try:
                # Once: what has ended Spark, or took too long, would do so again.
                return self._kept.rows(query, timeout_seconds)
            except SparkAway:
                self._forget()
                raise

    def close(self) -> None:
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        if self._kept is not None:
            self._kept.close()
        self._kept = None
        self._kept_of = None

    def _where(self) -> tuple[int, str]:
        """Return port and token.

        Raises:
            OperationalError: No system runs, or its token cannot be read.
        """
        state = read_state(self._data_dir)
        path = self._data_dir / TOKEN_FILE
        try:
            token = path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise SparkAway(f"the token {path} cannot be read: {exc}") from exc
        address = ("127.0.0.1", state.connect_port)
        try:
            socket.create_connection(address, timeout=CONNECT_TIMEOUT_SECONDS).close()
        except OSError as exc:
            raise SparkAway(
                f"Spark does not answer on port {state.connect_port}: {exc.strerror or exc}"
            ) from exc
        return state.connect_port, token

    def _open(self, port: int, token: str) -> Spark:
        from pyspark.errors import PySparkException
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession

        # What it logs it also raises.
        logging.getLogger("pyspark.sql.connect").setLevel(logging.CRITICAL)
        try:
            # By this name and no other the client sends a token without TLS, over loopback only.
            session = SparkSession(f"sc://localhost:{port}/;token={token}")
            # The default goes on for ten minutes.
            session.client.set_retry_policies([DefaultPolicy(max_retries=3, max_backoff=500)])
        except PySparkException as exc:
            raise SparkAway(f"Spark does not take the session: {sentence(exc)}") from exc
        spark = Spark(session)
        try:
            _check_catalog(spark)
        except Exception:
            spark.close()
            raise
        return spark


def _check_catalog(spark: Spark) -> None:
    """Spark takes sessions before it has made its tables, functions and views, at each start.

    Raises:
        SparkAway: It makes them still.
    """
    if not spark.perform(lambda session: session.catalog.databaseExists(EMPTY_SCHEMA)):
        raise SparkAway("Spark is starting, it makes its tables: ask again in some seconds")


def sentence(error: Exception) -> str:
    """Reduce an error of Spark's to what people can use: no trace, no state, no advice."""
    text = str(error).strip().partition("\n")[0].strip()
    text = text.partition(" SQLSTATE:")[0].removeprefix("[USER_RAISED_EXCEPTION] ")
    return text.partition(" If necessary set ")[0].removesuffix(".")


def _is_away(error: Exception) -> bool:
    """Tell whether it is the connection that failed; of what a query does there is a condition."""
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    condition = getattr(error, "getCondition", lambda: None)()
    if condition is not None and str(condition).startswith("INVALID_HANDLE"):
        return True  # SESSION_CLOSED, SESSION_NOT_FOUND, SESSION_CHANGED
    return type(error) is SparkConnectGrpcException
