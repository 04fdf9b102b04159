"""Give a rule's actions its outputs for history: for all messages before it came into force.

The rule's newest version counts live from one offset on in each partition; its backfill takes
earlier messages, from the table, and appends the outputs to `mqlake.outputs` as the engine does. So
each message is evaluated once by this version: no gap, no overlap. A backfill is an order of its
own: its outputs come from the source `b` with the job's identifier (`docs/records.md`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from api.jobs.jobs import Job
from api.log.appending import LogAppender
from api.log.log_range import has_messages
from api.rules import history
from api.rules.materialised import Entry
from api.rules.run import RuleRun
from api.spark.connect import EvaluationError, Row, Spark, SparkConnect
from mqlake.errors import MqlakeError
from mqlake.log.blocking import Append
from mqlake.records.messages import DEAD_LETTERS, INBOUND, OUTPUTS
from mqlake.records.outputs import DeadLetter, Position, dead_letter_headers, rule_record_key
from mqlake.records.rules import OffsetRange, Span
from mqlake.tables.catalogue import MESSAGES
from rules.language.compiled import CompiledRule
from rules.sql.confined import Confined, GivenRows

WINDOW_ROWS: Final = 100_000
"""Messages that are evaluated at a time, about; bounds the memory."""
APPEND_ROWS: Final = 500
MAX_EXPLAINED: Final = 20
"""Failures whose errors are found out: each is a query of its own."""
NOT_EXPLAINED: Final = (
    f"the evaluation failed; of a backfill only the first {MAX_EXPLAINED} failures are looked into"
)
MAX_ERROR_CHARACTERS: Final = 1_000


class BackfillError(MqlakeError):
    """It cannot begin, or cannot go on."""


@dataclass(frozen=True, slots=True)
class BackfillOrder:
    """The order for a backfill.

    Attributes:
        version: Running version of the rule.
        compiled: The rule; it has no memory.
        from_ms: No messages received before this time; None: all.
        rate: Outputs a second, at most.
        since: Nor messages before these offsets, by partition; empty: all.
    """

    tenant: str
    rule_id: str
    version: int
    compiled: CompiledRule
    live: OffsetRange
    from_ms: int | None
    rate: int
    since: tuple[int, ...] = ()

    @property
    def expression(self) -> str:
        assert self.compiled.expression is not None, "the rule has memory"
        return self.compiled.expression


def live_range(entry: Entry) -> OffsetRange:
    """Return from which offsets on the newest version of a rule counts.

    Raises:
        BackfillError: It does not run.
    """
    span, found = _running(entry)
    return found if span.first is None else OffsetRange(span.first[INBOUND])


def missed_since(entry: Entry) -> tuple[int, ...]:
    """Return the offsets at which a rule had stopped before its newest version came into force.

    Raises:
        BackfillError: It does not run, or has missed nothing.
    """
    span, _ = _running(entry)
    missed = (span.missed or {}).get(INBOUND)
    if missed is None:
        raise BackfillError(f"rule {entry.rule.id!r} had not stopped before version {span.version}")
    return missed


def _running(entry: Entry) -> tuple[Span, OffsetRange]:
    """Return the newest version of a rule that runs on messages, and where it counts."""
    activation = entry.activation
    if activation is None or entry.state != "running" or not activation.spans:
        raise BackfillError(f"rule {entry.rule.id!r} is {entry.state}, expected running")
    span = activation.spans[-1]
    found = span.sources.get(INBOUND)
    if span.version != entry.rule.version or found is None:
        raise BackfillError(f"rule {entry.rule.id!r} does not read messages")
    return span, found


def backfill(
    job: Job,
    order: BackfillOrder,
    connect: SparkConnect,
    log: LogAppender,
    current: Callable[[], Entry | None],
) -> dict[str, Any]:
    """Do it; return its result.

    Args:
        job: Says how far it is; its identifier tells its outputs from others.
        order: Request of the job, checked.
        connect: Opens sessions of Spark.
        log: Takes the outputs.
        current: Returns the rule as it is now: a backfill ends when it has changed.

    Raises:
        BackfillError: The rule has changed, or the table does not follow the log.
        LogError: The log does not answer.
        Cancelled: The job was cancelled.
        SparkAway: Spark does not answer.
    """
    with connect.session(history.SESSION_SETTINGS, job.cancelling.is_set) as spark:
        return _Backfill(job, order, spark, log, current).run()


class _Backfill(RuleRun[BackfillOrder]):
    error = BackfillError

    def __init__(
        self,
        job: Job,
        order: BackfillOrder,
        spark: Spark,
        log: LogAppender,
        current: Callable[[], Entry | None],
    ) -> None:
        super().__init__(job, order, spark, log, current, source=f"b{job.id}")
        counted: dict[str, int] = job.place.get("counts", {})
        self._matched = counted.get("matched", 0)
        self._passed = counted.get("passed", 0)
        self._failed = counted.get("failed", 0)
        self._loops = counted.get("loops", 0)
        self._outputs = counted.get("outputs", 0)

    def run(self) -> dict[str, Any]:
        self._await_table()
        version = self.version_of(MESSAGES.name)
        ranges = self._ranges(version)
        total = sum(end - begin for begin, end in ranges.values())
        step = max(1, WINDOW_ROWS // max(1, len(ranges)))
        # Outputs under way when the job was interrupted are made again, with their identifiers:
        # readers of outputs keep the last of each source and drop those not above it.
        resumed: dict[str, int] = self._job.place.get("next", {})
        at = {
            partition: min(max(begin, resumed.get(str(partition), 0)), end)
            for partition, (begin, end) in ranges.items()
        }
        done = sum(at[partition] - begin for partition, (begin, _) in ranges.items())
        while done < total:
            self.check()
            window = {
                partition: (begin, min(begin + step, ranges[partition][1]))
                for partition, begin in at.items()
                if begin < ranges[partition][1]
            }
            self._run_window(version, window)
            for partition, (begin, end) in window.items():
                at[partition] = end
                done += end - begin
            self._job.place = {
                "next": {str(partition): end for partition, end in at.items()},
                "counts": self._counts(),
            }
            self._job.advance(done / total, f"{self._outputs:,} outputs")
        return {
            "version": self._order.version,
            "source": self._source,
            "table_version": version,
            **self._counts(),
            "no_result": self._matched - self._passed - self._failed - self._loops,
            "before": list(self._order.live.starts),
        }

    def _counts(self) -> dict[str, int]:
        return {
            "matched": self._matched,
            "passed": self._passed,
            "failed": self._failed,
            "loops": self._loops,
            "outputs": self._outputs,
        }

    def _await_table(self) -> None:
        """Wait until the table has every message of the tenant before the rule's first offsets."""
        wanted = dict(enumerate(self._order.live.starts))

        def has_all() -> bool:
            rows = self.rows(
                f"SELECT log_partition, max(log_offset) AS last FROM {MESSAGES.name}"  # noqa: S608
                " GROUP BY log_partition"
            )
            last = {row["log_partition"]: row["last"] for row in rows}
            for partition, end in list(wanted.items()):
                begin = last.get(partition, -1) + 1
                if begin >= end or not has_messages(
                    self._log.servers, self._order.tenant, partition, begin, end
                ):
                    del wanted[partition]
            return not wanted

        note = "waiting for the table to have what came before the rule"
        self.await_table(MESSAGES.name, has_all, note)

    def _stored_rows(self, version: int, within: str) -> GivenRows:
        """Return the messages that the rule matches, of those that a condition is true of."""
        matched = f"({history.matches(self._order.compiled.filters)})"
        where = " AND ".join([*history.between(self._order.from_ms, None), matched, within])
        return history.MESSAGES_STORED.rows(version, self._order.tenant, where)

    def _ranges(self, version: int) -> dict[int, tuple[int, int]]:
        """Return per partition the first offset that matches and the first that is live."""
        since = dict(enumerate(self._order.since))
        before = " OR ".join(
            f"(log_partition = {partition:d} AND log_offset >= {since.get(partition, 0):d}"
            f" AND log_offset < {start:d})"
            for partition, start in enumerate(self._order.live.starts)
        )
        rows = self._stored_rows(version, f"({before})")
        query = (
            "SELECT log_partition, min(log_offset) AS first, max(log_offset) AS last"  # noqa: S608
            f" FROM {history.STORED} GROUP BY log_partition"
        )
        found = self.rows(Confined(query, {history.STORED: rows}))
        return {row["log_partition"]: (row["first"], row["last"] + 1) for row in found}

    def _run_window(self, version: int, window: dict[int, tuple[int, int]]) -> None:
        inside = " OR ".join(
            f"(log_partition = {partition:d} AND log_offset >= {begin:d} AND log_offset < {end:d})"
            for partition, (begin, end) in window.items()
        )
        rows = self._stored_rows(version, f"({inside})")
        relations = {history.STORED: rows}
        result = history.guarded(self._order.expression)
        inner = f"SELECT {history.MESSAGES_STORED.row} FROM {history.STORED}"  # noqa: S608
        names = "id, topic, clientid, timestamp, log_partition, log_offset"
        evaluated = f"SELECT {names}, payload, {result} AS result FROM ({inner})"  # noqa: S608
        counted = self.rows(
            Confined(f"SELECT count(*) AS matched FROM {history.STORED}", relations)  # noqa: S608
        )
        self._matched += counted[0]["matched"]
        query = (
            f"SELECT {names}, result, CASE WHEN result IS NULL THEN payload END AS payload"  # noqa: S608
            f" FROM ({evaluated}) WHERE result IS NULL OR octet_length(result) > 0"
            " ORDER BY log_partition, log_offset"
        )
        found = self.rows(Confined(query, relations))
        records: list[Append] = []
        letters: list[Append] = []
        for row in found:
            if row["result"] is None:
                letters.append(self._dead_letter(version, row))
            else:
                records += self._records(row)
            if len(records) + len(letters) >= APPEND_ROWS:
                self._append(records, letters)
                records, letters = [], []
        self._append(records, letters)

    def _records(self, row: Row) -> list[Append]:
        records = self.outputs_of(row)
        if records is None:
            self._loops += 1
            return []
        self._passed += 1
        return records

    def _dead_letter(self, version: int, row: Row) -> Append:
        """Return a dead letter as the engine writes it, for a row on which the rule fails."""
        order = self._order
        self._failed += 1
        error = NOT_EXPLAINED
        if self._failed <= MAX_EXPLAINED:
            query = history.MESSAGES_STORED.unguarded(
                version, order.tenant, history.position(row), order.expression
            )
            try:
                self.rows(query)
            except EvaluationError as exc:
                error = str(exc)[:MAX_ERROR_CHARACTERS]
        letter = DeadLetter(
            tenant=order.tenant,
            rule=order.rule_id,
            version=order.version,
            value=row["payload"] or b"",
            position=Position(self._source, row["log_partition"], row["log_offset"], 0),
            stage="evaluate",
            error=error,
            topic_name=row["topic"],
            client_id=row["clientid"] or "",
        )
        key = rule_record_key(order.tenant, order.rule_id)
        return Append(0, key, letter.value, dead_letter_headers(letter))

    def _append(self, records: Sequence[Append], letters: Sequence[Append]) -> None:
        count = len(records) + len(letters)
        if not count:
            return
        self.check()
        self.wait(count)
        self.append(OUTPUTS, records)
        self.append(DEAD_LETTERS, letters)
        self._outputs += len(records)
        self._job.advance(self._job.progress, f"{self._outputs:,} outputs")
