"""Ask Spark through Spark Connect: sessions of the query application, which runs while it is used.

The client library takes seconds to load and 100 MB of memory: so this waits for the first request.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from api.relations.catalog import is_to_be_made, made_by
from api.spark.kept_sessions import KeptSessions
from mqlake.errors import MqlakeError, OperationalError
from mqlake.processes.query_application import NotReady, QueryApplication, Unwanted, Use
from mqlake.records.tenants import DEFAULT_TENANT
from rules.sql.confined import FUNCTIONS_OPTION, Confined, listed, own
from rules.sql.functions import RULE_FUNCTIONS

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.session import SparkSession

TOKEN_FILE: Final = "connect-token"  # noqa: S105 - the name of the file
QUERY_TIMEOUT_SECONDS: Final = 20.0
OPEN_SECONDS: Final = 120.0
"""Longest of each statement that opens a session: the first ones of a Spark that has just started
take many times as long as others."""
START_SECONDS: Final = 20.0
"""Longest that a request waits for Spark to start; then the caller may ask again."""
JOB_START_SECONDS: Final = 120.0
"""How long a job waits for a start; no caller waits for it."""
MOST_ASKING: Final = 10
"""Short questions that are asked or wait for their turn: each keeps one of the forty threads that
all requests share."""
MOST_ASKING_OF_ONE: Final = 4
"""The same for one tenant."""
GRACE_SECONDS: Final = 60.0
"""That a query may take to end when it is interrupted; then Spark is ended, for all. Not less:
one that gets little of busy processors would be ended before it is warm, each time."""

_CHECK_SECONDS: Final = 0.2
"""Pause between looks whether a query is no longer wanted."""
_UNKNOWN: Final = {
    "TABLE_OR_VIEW_NOT_FOUND": "relationName",
    "UNRESOLVED_ROUTINE": "routineName",
}
"""Condition of an error of Spark's -> its parameter that names the unknown thing."""

_SAFE: Final = {
    # `${env:…}` and `${spark…}` in a text would be replaced by the values they name.
    "spark.sql.variable.substitute": "false",
    "spark.sql.runSQLOnFiles": "false",
    # Would copy conditions of one relation to what a query says is equal, in another one.
    "spark.sql.constraintPropagation.enabled": "false",
    # Would cast values while files are read, before it is asked whose they are.
    "spark.sql.variant.pushVariantIntoScan": "false",
    # Would ask conditions of a query about the least and greatest values of a file, of all rows.
    "spark.databricks.delta.skipping.partitionLikeFilters.enabled": "false",
}
"""Settings of all sessions."""
_LOADING: Final = threading.Lock()

Row = dict[str, Any]
Statement = str | Confined
"""As text it is mqlake's own: of users it holds literals alone."""
Result = TypeVar("Result")


class EvaluationError(MqlakeError):
    """Spark has tried a query and an expression in it failed; the message is for people."""


class Cancelled(MqlakeError):  # noqa: N818 - it was asked for
    """The query was no longer wanted."""


class OutOfMemory(EvaluationError):  # noqa: N818 - it names the obstacle
    """The query has ended Spark: it needs more memory than Spark has."""


class SparkAway(OperationalError):  # noqa: N818
    """Spark does not answer."""


class SparkBusy(SparkAway):
    """As many ask it already as may."""


class SparkEnded(SparkAway):
    """Spark has ended while several asked it: the query of one of them may have ended it.

    Attributes:
        by_memory: Its heap was full.
    """

    def __init__(self, message: str, *, by_memory: bool = False) -> None:
        super().__init__(message)
        self.by_memory = by_memory


class SparkStarting(SparkAway):
    """Spark is not ready yet: nothing has been asked, it may be asked again."""


class Spark:
    """A session; one query at a time.

    Args:
        session: Stopped by `close`.
        use: Use that Spark runs for.
        tables: Folder of the tables.
    """

    def __init__(self, session: "SparkSession", use: Use, tables: Path) -> None:
        self._session = session
        self._use = use
        self._tables = tables
        self._progress: Callable[[float], None] | None = None
        handler: Any = self._report  # any callable will do
        session.registerProgressHandler(handler)

    def rows(
        self,
        query: Statement,
        timeout_seconds: float = QUERY_TIMEOUT_SECONDS,
        *,
        progress: Callable[[float], None] | None = None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> list[Row]:
        """Return the rows of a query.

        Args:
            query: What of it is a user's, or made of a user's text, is confined.
            timeout_seconds: After that it is interrupted.
            progress: Gets the share of the tasks that is done, now and then.
            is_cancelled: Asked now and then; True interrupts the query.

        Raises:
            EvaluationError: An expression failed, or needs more memory than there is.
            Cancelled: It was interrupted.
            SparkAway: Spark does not answer, or not in time.
        """
        text = query.text if isinstance(query, Confined) else own(query)

        def ask(session: "SparkSession") -> list[Row]:
            found: list[Row] = session.sql(text).toArrow().to_pylist()
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

        Args:
            work: May be done again from its beginning, as long as Spark finds unknown names in it.
            timeout_seconds: See `rows`.
            progress: See `rows`.
            is_cancelled: See `rows`.

        Raises:
            EvaluationError: Spark refuses or fails; its cause is the client library's exception.
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
            return self._evaluate(work, set())
        except (PySparkException, RpcError) as exc:
            if late.is_set():
                raise SparkAway(f"Spark did not answer within {timeout_seconds:g} s") from exc
            if is_cancelled():
                raise Cancelled("cancelled") from exc
            # The client closes a session itself when it finds that Spark is another one.
            if isinstance(exc, RpcError) or self._session.is_stopped or _is_away(exc):
                self._tell_end(exc)
            raise EvaluationError(sentence(exc)) from exc
        finally:
            done.set()
            self._progress = None

    def _evaluate(self, work: "Callable[[SparkSession], Result]", made: set[str]) -> Result:
        """Do some work; names that Spark does not know are made known first."""
        from pyspark.errors import PySparkException

        while True:
            try:
                return work(self._session)
            except PySparkException as exc:
                if not self._make_known(exc, made):
                    raise

    def _make_known(self, error: "PySparkException", made: set[str]) -> bool:
        name = _unknown_name(error)
        if name is None or name in made:
            return False
        made.add(name)
        if is_to_be_made(name, self._tables):
            raise SparkStarting("the tables are being made: ask again in a moment") from error
        statements = made_by(name, self._tables)
        for statement in statements:
            self._evaluate(partial(_make, statement), made)
        return bool(statements)

    def _tell_end(self, error: Exception) -> NoReturn:
        """Say why Spark does not answer any more.

        Raises:
            OutOfMemory: The query has ended it.
            SparkEnded: There were other queries, too.
            SparkAway: In any other case.
        """
        end = self._use.ended()
        if end is None:
            raise SparkAway("Spark does not answer; see: bin/mqlake status") from error
        if end.cause == "memory" and end.was_alone:
            raise OutOfMemory(f"this needs more memory than Spark has: {end.reason}") from error
        if end.was_alone:
            raise SparkAway(f"Spark ended before it had answered: {end.reason}") from error
        also = ", or for what else it was asked" if end.cause == "memory" else ""
        said = f"Spark ended before it had answered{also}: {end.reason}"
        raise SparkEnded(said, by_memory=end.cause == "memory") from error

    def make_known(self, names: Iterable[str]) -> None:
        """Let Spark know tables, views and functions before a statement names them.

        Raises:
            EvaluationError: Spark refuses or fails.
            SparkAway: Spark does not answer.
        """
        for name in names:
            for statement in made_by(name, self._tables):
                self.rows(statement)

    def is_there(self, use: Use) -> bool:
        """Tell whether Spark has the session still: it may be another, or have thrown it away.

        Args:
            use: That Spark runs for from now on.
        """
        self._use = use
        try:
            self.perform(lambda session: session.conf.get("spark.sql.session.timeZone"))
        except SparkAway:
            return False
        return True

    def configure(self, settings: Mapping[str, str]) -> None:
        """Apply settings to this session.

        Raises:
            EvaluationError: Spark refuses.
            SparkAway: Spark does not answer.
        """

        def set_all(session: "SparkSession") -> None:
            for key, value in settings.items():
                session.conf.set(key, value)

        self.perform(set_all, OPEN_SECONDS)

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
        while not (late.is_set() or is_cancelled()):
            if done.wait(_CHECK_SECONDS):
                return
            left -= _CHECK_SECONDS
            if left <= 0:
                late.set()
        reason = f"a query did not stop within {GRACE_SECONDS:g} s"
        # By another thread: to interrupt is a question, too, and Spark may answer none any more.
        ending = threading.Timer(GRACE_SECONDS, self._use.end, [reason])
        ending.daemon = True
        ending.start()
        try:
            self._interrupt(done)
        finally:
            ending.cancel()

    def _interrupt(self, done: threading.Event) -> None:
        while not done.wait(_CHECK_SECONDS):
            try:
                self._session.interruptAll()
            except Exception:  # noqa: BLE001 - the query's own end tells the error
                done.wait()

    def _report(self, stages: Any, inflight_tasks: int, operation_id: Any, done: bool) -> None:
        """Take the arguments of the client library's call, by these names."""
        report = self._progress
        tasks = [(one.num_completed_tasks, one.num_tasks) for one in stages or ()]
        if report is not None and tasks:
            report(sum(one for one, _ in tasks) / max(1, sum(number for _, number in tasks)))


class SparkConnect:
    """Opens sessions, and keeps one for short questions.

    Args:
        data_dir: Data directory of the system: in it are the query application's socket and a
            token.
    """

    def __init__(self, data_dir: Path) -> None:
        self._token_file = data_dir / TOKEN_FILE
        self._tables = data_dir.absolute() / "tables"
        self._application = QueryApplication(data_dir)
        self._asking = Counter[str]()
        self._places = threading.Lock()
        self._lock = threading.Lock()
        # After an error of an expression a session is as it was.
        self._kept = KeptSessions(
            partial(self.open, {}),
            1,
            lambda exc: isinstance(exc, EvaluationError) and not isinstance(exc, OutOfMemory),
        )

    @contextmanager
    def use(
        self,
        seconds: float = START_SECONDS,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> Iterator[Use]:
        """Have Spark run for the length of a `with` block.

        Args:
            seconds: That it may take to start.
            is_cancelled: Asked now and then; True ends the waiting.

        Raises:
            Cancelled: It is no longer wanted.
            SparkAway: Spark does not run, or is not ready by then.
        """
        with ExitStack() as stack:
            try:
                use = stack.enter_context(self._application.use(seconds, is_cancelled))
            except Unwanted as exc:
                raise Cancelled("cancelled") from exc
            except NotReady as exc:
                raise SparkStarting(str(exc)) from exc
            except OperationalError as exc:
                raise SparkAway(str(exc)) from exc
            yield use

    @contextmanager
    def session(
        self, settings: Mapping[str, str], is_cancelled: Callable[[], bool] = lambda: False
    ) -> Iterator[Spark]:
        """Open a session of its own for a job.

        Raises:
            Cancelled: It is no longer wanted.
            SparkAway: Spark does not answer.
        """
        with self.use(JOB_START_SECONDS, is_cancelled) as use:
            spark = self.open(settings, use)
            try:
                yield spark
            finally:
                spark.close()

    def open(
        self, settings: Mapping[str, str], use: Use, functions: Iterable[str] = RULE_FUNCTIONS
    ) -> Spark:
        """Open a session of its own; the caller closes it.

        Args:
            settings: Settings of the session.
            use: Use that Spark runs for.
            functions: That confined statements may call there.

        Raises:
            SparkAway: Spark does not answer.
        """
        spark = self._connected(use)
        try:
            spark.configure({**settings, **_SAFE, FUNCTIONS_OPTION: listed(functions)})
        except Exception:
            spark.close()
            raise
        return spark

    def rows(
        self,
        query: Statement,
        timeout_seconds: float = QUERY_TIMEOUT_SECONDS,
        *,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Row]:
        """Ask in the session that is kept; it is opened again when Spark was away.

        Args:
            query: The question.
            timeout_seconds: After that it is interrupted.
            tenant: Tenant of whoever asks.

        Raises:
            EvaluationError: An expression failed.
            SparkAway: Spark does not answer, or not in time.
            SparkBusy: Too many wait for their turn, of the tenant or of all.
        """
        with (
            self._place(tenant),
            self.use() as use,
            self._lock,
            self._kept.lend(use) as session,
        ):
            # Once: a query that has ended Spark, or took too long, would do so again.
            return session.rows(query, timeout_seconds)

    @contextmanager
    def _place(self, tenant: str) -> Iterator[None]:
        """Count a question for the length of a `with` block."""
        with self._places:
            is_full = self._asking.total() >= MOST_ASKING
            if is_full or self._asking[tenant] >= MOST_ASKING_OF_ONE:
                raise SparkBusy("too many ask Spark at the moment: try again later")
            self._asking[tenant] += 1
        try:
            yield
        finally:
            with self._places:
                self._asking -= Counter((tenant,))

    def close(self) -> None:
        with self._lock:
            self._kept.close()

    def _connected(self, use: Use) -> Spark:
        load_client()
        from pyspark.errors import PySparkException
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession

        try:
            token = self._token_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise SparkAway(f"the token {self._token_file} cannot be read: {exc}") from exc
        _silence_client()
        try:
            # By this name and no other the client sends a token without TLS, over loopback only.
            session = SparkSession(f"sc://localhost:{use.port}/;token={token}")
            # The default goes on for ten minutes.
            session.client.set_retry_policies([DefaultPolicy(max_retries=3, max_backoff=500)])
        except PySparkException as exc:
            raise SparkAway(f"Spark does not take the session: {sentence(exc)}") from exc
        return Spark(session, use, self._tables)


def load_client() -> None:
    """Import the client library.

    Its packages import each other in circles: to a thread that comes while another one is about it
    Python gives halves of them, and that fails.
    """
    with _LOADING:
        import pyspark.sql.connect.session  # noqa: F401


def _silence_client() -> None:
    """Keep errors out of the log that the client library logs and raises: they hold values."""
    from pyspark.logger import PySparkLogger

    logging.getLogger("pyspark.sql.connect").setLevel(logging.CRITICAL)
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _make(statement: str, session: "SparkSession") -> None:
    session.sql(own(statement))


def _unknown_name(error: "PySparkException") -> str | None:
    """Return the name that Spark does not know, from its error; None for other errors."""
    parameter = _UNKNOWN.get(error.getCondition() or "")
    return None if parameter is None else (error.getMessageParameters() or {}).get(parameter)


def sentence(error: Exception) -> str:
    """Reduce an error of Spark's to one sentence: no trace, no state, no advice."""
    text = str(error).strip().partition("\n")[0].strip()
    text = text.partition(" SQLSTATE:")[0].removeprefix("[USER_RAISED_EXCEPTION] ")
    return text.partition(" If necessary set ")[0].removesuffix(".")


def _is_away(error: Exception) -> bool:
    """Tell whether the connection failed; an error of a query has a condition."""
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    condition = getattr(error, "getCondition", lambda: None)()
    if condition is not None and str(condition).startswith("INVALID_HANDLE"):
        return True  # SESSION_CLOSED, SESSION_NOT_FOUND, SESSION_CHANGED
    return type(error) is SparkConnectGrpcException
