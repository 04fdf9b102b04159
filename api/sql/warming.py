"""Have Spark started, and its code run once, before a user waits for a query.

Most of the cost of a first query is code that runs for the first time: the client library in this
process, reading Delta, compiling, writing a result. So one small query does all of that.
"""

import logging
import threading
from typing import Final

from api.spark.connect import JOB_START_SECONDS, SparkConnect
from api.sql.checking import check
from api.sql.running import QueryLimits, QueryRunner
from mqlake.errors import MqlakeError
from mqlake.records.tenants import DEFAULT_TENANT

_logger = logging.getLogger(__name__)

QUERY: Final = (
    "SELECT topic, count(*) AS messages, max(ts) AS last FROM messages"
    " WHERE ts > current_timestamp() - INTERVAL 10 MINUTES AND topic_matches(topic, '+/#')"
    " GROUP BY topic ORDER BY messages DESC"
)
"""Query of a common kind, over rows written lately, however large the table is."""
_LIMITS: Final = QueryLimits(rows=1, seconds=120.0, bytes=1_000_000)
_CLOSE_SECONDS: Final = 3.0


class WarmUp:
    """Warms Spark up, once in each of its lives; safe to use from any thread.

    Args:
        connect: Has Spark started.
        runner: Runner of queries; keeps the session that this one had.
    """

    def __init__(self, connect: SparkConnect, runner: QueryRunner) -> None:
        self._connect = connect
        self._runner = runner
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._warm_pid = 0
        """Process of the Java that is warm."""

    def begin(self) -> None:
        """Have it done by another thread; one that is under way is not begun twice."""
        with self._lock:
            if self._stopping.is_set() or (self._thread is not None and self._thread.is_alive()):
                return
            self._thread = threading.Thread(target=self._run, name="warm-up", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End it, or leave it to its end after some seconds."""
        self._stopping.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            with self._connect.use(JOB_START_SECONDS, self._stopping.is_set) as use:
                if use.java_pid == self._warm_pid:
                    return
                query = check(QUERY, DEFAULT_TENANT)
                query = query.around(query.sql)  # for Spark
                with self._runner.run(query, "json", _LIMITS, self._stopping.is_set):
                    self._warm_pid = use.java_pid
        except MqlakeError as exc:
            # A caller hears it, too, when it is still so.
            _logger.info("Spark is not warmed up", extra={"fields": {"reason": str(exc)}})
