"""Jobs that evaluate a rule on history, and those that append its outputs to the log."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Final, Generic, Protocol, TypeVar

from api.jobs.jobs import Job
from api.jobs.pace import JobPace, when_there_is_room
from api.log.appending import LogAppender
from api.rules.materialised import Entry
from api.spark.connect import Row, Spark, Statement
from mqlake.errors import MqlakeError
from mqlake.log.blocking import Append
from mqlake.records.outputs import Output, Position, output_headers, rule_record_key

TABLE_SECONDS: Final = 120.0
"""How long a table may take to follow the log."""
QUERY_SECONDS: Final = 600.0
_CLIENT_PREFIX: Final = "rule:"
"""Begins the client identifier of messages that a rule has published."""


class RunOrder(Protocol):
    """The order for a run."""

    @property
    def tenant(self) -> str: ...
    @property
    def rule_id(self) -> str: ...
    @property
    def version(self) -> int:
        """Return the running version of the rule."""
        ...

    @property
    def rate(self) -> int:
        """Outputs a second, at most."""
        ...


Order = TypeVar("Order", bound=RunOrder)


class HistoryRun:
    """One run over history.

    Args:
        job: Says how far it is.
        spark: Evaluates.
    """

    query_seconds: ClassVar[float] = QUERY_SECONDS

    def __init__(self, job: Job, spark: Spark) -> None:
        self._job = job
        self._spark = spark

    def rows(self, query: Statement, progress: Callable[[float], None] | None = None) -> list[Row]:
        """Return the rows of a query, as long as the job is wanted."""
        self._job.check()
        return self._spark.rows(
            query,
            self.query_seconds,
            progress=progress,
            is_cancelled=self._job.cancelling.is_set,
        )

    def version_of(self, table: str) -> int:
        """Return the version of a table that there is now."""
        return int(self.rows(f"DESCRIBE HISTORY {table} LIMIT 1")[0]["version"])


class RuleRun(HistoryRun, Generic[Order]):
    """One run that makes outputs.

    Args:
        job: Says how far it is.
        order: Request of the job, checked.
        spark: Evaluates.
        log: Takes the outputs.
        current: Returns the rule as it is now: a run ends when it has changed.
        source: Tells its outputs from those of others, see `Position`.
    """

    error: ClassVar[type[MqlakeError]]
    """It cannot go on."""

    def __init__(
        self,
        job: Job,
        order: Order,
        spark: Spark,
        log: LogAppender,
        current: Callable[[], Entry | None],
        source: str,
    ) -> None:
        super().__init__(job, spark)
        self._order = order
        self._log = log
        self._source = source
        self._pace = JobPace(order.rate)
        self._outputs = 0
        self._current = current

    def check(self) -> None:
        """Go on if the job is wanted, and its version of the rule runs.

        Raises:
            Cancelled: It is not.
            MqlakeError: It does not run any more, as `error`.
        """
        self._job.check()
        entry, version = self._current(), self._order.version
        is_same = entry is not None and entry.rule.version == version
        if entry is None or not is_same or entry.state != "running":
            raise self.error(
                f"the rule is no longer at version {version} and running; "
                f"{self._outputs} outputs were made"
            )

    def await_table(self, table: str, has_all: Callable[[], bool], note: str) -> None:
        """Wait until a table has all that is in the log.

        Raises:
            MqlakeError: It does not follow, as `error`.
        """
        deadline = time.monotonic() + TABLE_SECONDS
        self._job.advance(0.0, note)
        while not has_all():
            if time.monotonic() > deadline:
                raise self.error(
                    f"the table {table} has not followed the log within "
                    f"{TABLE_SECONDS:g} s; see: bin/mqlake status"
                )
            self._job.cancelling.wait(1.0)

    def outputs_of(self, row: Row) -> list[Append] | None:
        """Return the outputs of a message; None: the rule itself has published it.

        Args:
            row: With the columns of a rule's row, and `result`, see `history.guarded`: not null.
        """
        order = self._order
        result: bytes = row["result"]
        client_id: str = row["clientid"] or ""
        chain: tuple[str, ...] = ()
        if client_id.startswith(_CLIENT_PREFIX):
            chain = (client_id.removeprefix(_CLIENT_PREFIX),)
            if chain == (order.rule_id,):
                return None
        key = rule_record_key(order.tenant, order.rule_id)
        partition, offset = row["log_partition"], row["log_offset"]
        records = []
        for index, line in enumerate(result.split(b"\n") if result else ()):
            output = Output(
                tenant=order.tenant,
                rule=order.rule_id,
                version=order.version,
                row=line,
                position=Position(self._source, partition, offset, index),
                received_at_ms=row["timestamp"],
                topic_name=row["topic"],
                client_id=client_id,
                message_id=bytes.fromhex(row["id"]) if row["id"] else None,
                chain=chain,
            )
            records.append(Append(partition, key, line, output_headers(output)))
        return records

    def wait(self, count: int) -> None:
        """Keep to the rate."""
        self._pace.wait(count, self._job.cancelling.wait)

    def append(self, log_topic: str, records: Sequence[Append]) -> None:
        """Append outputs, or records in their place."""
        if records:
            what = f"outputs of rule {self._order.rule_id!r}"
            append = partial(self._log.append_all, log_topic, records, what=what)
            when_there_is_room(self._job, append, self.check)
