"""Run dead letters again: messages that a rule could not evaluate, by the rule as it is now.

An output's identifier is made of the message's place, as the engine's is, with the source `r`.
Outputs go into the log before the mark that says the message is done with; a run that was killed
between them has left outputs, which the next one finds in the log (`rerun_log`). So no message is
taken twice, whoever asks how often. Readers keep no mark of the source `r`: its places come in any
order.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from api.jobs import Job
from api.log import LogAppender
from api.rules import history
from api.rules.backfill import BackfillPace
from api.rules.dead_letters import Wanted, places_query
from api.rules.materialised import Entry
from api.rules.rerun_log import Begin, Place, RerunLog
from api.spark import EvaluationError, Row, Spark, SparkConnect
from mqlake.errors import MqlakeError
from mqlake.log.blocking import Append
from mqlake.records import DEAD_LETTERS as DEAD_LETTERS_TOPIC
from mqlake.records import INBOUND, OUTPUTS
from mqlake.rule_records import (
    RERUN,
    DeadLetter,
    Output,
    Position,
    dead_letter_headers,
    output_headers,
    rule_record_key,
)
from mqlake.tables import DEAD_LETTERS, MESSAGES
from rules.language.compiled import CompiledRule

PAGE: Final = 500
"""Messages that are evaluated at a time."""
TABLE_SECONDS: Final = 120.0
"""How long the table may take to have the marks of the run before."""
QUERY_SECONDS: Final = 600.0
MAX_ERRORS: Final = 5
_CLIENT_PREFIX: Final = "rule:"


class RerunError(MqlakeError):
    """It cannot go on."""


@dataclass(frozen=True, slots=True)
class RerunOrder:
    """What is asked for.

    Attributes:
        version: Of the rule, that runs.
        compiled: The rule; see `why_not`.
        wanted: Which letters.
        rate: Outputs a second, at most.
    """

    version: int
    compiled: CompiledRule
    wanted: Wanted
    rate: int

    @property
    def tenant(self) -> str:
        return self.wanted.tenant

    @property
    def rule_id(self) -> str:
        assert self.wanted.rule is not None
        return self.wanted.rule

    @property
    def expression(self) -> str:
        assert self.compiled.expression is not None, "the rule has memory"
        return self.compiled.expression


def why_not(rule: CompiledRule) -> str | None:
    """Return why a rule's letters cannot be run again; None when they can."""
    if rule.plan is not None:
        return (
            "the rule has memory (windows, joins, detections): not supported, what it remembers "
            "has gone on without these messages"
        )
    if rule.is_events:
        return "the rule reads events: not supported, only messages can be run again"
    return None


def rerun(
    job: Job,
    order: RerunOrder,
    connect: SparkConnect,
    log: LogAppender,
    reader: RerunLog,
    before: Begin | None,
    begin: Callable[[Begin], None],
    current: Callable[[], Entry | None],
) -> dict[str, Any]:
    """Do it; return what was done.

    Args:
        job: Says how far it is.
        order: What is asked for.
        connect: Where Spark is.
        log: Takes outputs and marks.
        reader: Tells what is in the log.
        before: Where the run before began.
        begin: Keeps where this run begins, in the log.
        current: Returns the rule as it is now: a run ends when it has changed.

    Raises:
        RerunError: The rule has changed, or the table does not follow the log.
        LogError: The log does not answer.
        Cancelled: The job was cancelled; what was done stays done.
        SparkAway: Spark does not answer.
    """
    with connect.session(history.SESSION_SETTINGS, job.cancelling.is_set) as spark:
        run = _Rerun(job, order, spark, log, reader, current)
        job.advance(0.0, "reading what was run again before")
        run.recover(before)
        begin(reader.ends())
        return run.run()


class _Rerun:
    def __init__(
        self,
        job: Job,
        order: RerunOrder,
        spark: Spark,
        log: LogAppender,
        reader: RerunLog,
        current: Callable[[], Entry | None],
    ) -> None:
        self._job = job
        self._order = order
        self._spark = spark
        self._log = log
        self._reader = reader
        self._current = current
        self._pace = BackfillPace(order.rate)
        self._counts = dict.fromkeys(
            ("letters", "passed", "no_result", "failed", "not_matched", "loops", "outputs"), 0
        )
        self._errors: list[dict[str, Any]] = []

    def run(self) -> dict[str, Any]:
        total = self._rows(places_query(self._order.wanted, None, None))[0]["places"]
        version = int(self._rows(f"DESCRIBE HISTORY {MESSAGES.name} LIMIT 1")[0]["version"])
        after: int | None = None
        while True:
            self._check()
            rows = self._rows(places_query(self._order.wanted, after, PAGE))
            if not rows:
                break
            places = [row["position"] for row in rows]
            self._run_page(version, places)
            after = places[-1]
            outputs = self._counts["outputs"]
            self._job.advance(self._counts["letters"] / max(1, total), f"{outputs:,} outputs")
        return {"version": self._order.version, **self._counts, "errors": self._errors}

    def _check(self) -> None:
        self._job.check()
        entry = self._current()
        is_same = entry is not None and entry.rule.version == self._order.version
        if entry is None or not is_same or entry.state != "running":
            raise RerunError(
                f"the rule is no longer at version {self._order.version} and running; "
                f"{self._counts['outputs']} outputs were made"
            )

    def _rows(self, query: str) -> list[Row]:
        self._job.check()
        return self._spark.rows(query, QUERY_SECONDS, is_cancelled=self._job.cancelling.is_set)

    # What the run before has left

    def recover(self, before: Begin | None) -> None:
        """Mark what the run before has done, and wait until the table has all marks."""
        if before is None:
            return
        left = self._reader.left(self._order.tenant, self._order.rule_id, before)
        unmarked = [place for place in left.made if place not in left.marked]
        self._mark(unmarked)
        last = next(reversed([*left.marked, *unmarked]), None)
        if last is not None:
            self._await_mark(last)

    def _await_mark(self, place: Place) -> None:
        """Wait until the table has a mark: then it has all before."""
        deadline = time.monotonic() + TABLE_SECONDS
        query = (
            f"SELECT count(*) AS found FROM {DEAD_LETTERS.name} WHERE stage = 'rerun'"  # noqa: S608
            f" AND tenant = {history.text(self._order.tenant)}"
            f" AND rule = {history.text(self._order.rule_id)}"
            f" AND log_partition = {place[0]:d} AND log_offset = {place[1]:d}"
        )
        while not self._rows(query)[0]["found"]:
            if time.monotonic() > deadline:
                raise RerunError(
                    f"the table {DEAD_LETTERS.name} has not followed the log within "
                    f"{TABLE_SECONDS:g} s; see: bin/mqlake status"
                )
            self._job.advance(0.0, "waiting for the table to have the run before")
            self._job.cancelling.wait(1.0)

    # A page

    def _run_page(self, version: int, places: Sequence[int]) -> None:
        done: list[Place] = []
        records: list[Append] = []
        for row in self._rows(self._evaluated(version, places)):
            self._counts["letters"] += 1
            place = (row["log_partition"], row["log_offset"])
            made = self._records(row)
            if made is not None:
                records += made
                done.append(place)
        self._check()
        if records:
            self._pace.wait(len(records), self._job.cancelling.wait)
            self._log.append_all(OUTPUTS, records, what=f"outputs of rule {self._order.rule_id!r}")
            self._counts["outputs"] += len(records)
        self._mark(done)

    def _evaluated(self, version: int, places: Iterable[int], *, unguarded: bool = False) -> str:
        """Return the query that evaluates: one row for each message.

        What the table of messages no longer has is made of what the letter kept.
        """
        where = history.at_positions(places)
        letters = (
            "SELECT log_partition, log_offset, any_value(tenant) AS tenant, any_value(topic)"  # noqa: S608
            " AS topic, any_value(client_id) AS client_id, any_value(value) AS payload, min(ts) AS"
            f" ts FROM {DEAD_LETTERS.name} WHERE ({where}) AND stage = 'evaluate'"
            f" AND tenant = {history.text(self._order.tenant)}"
            f" AND rule = {history.text(self._order.rule_id)}"
            f" AND source = {history.text(INBOUND)} GROUP BY log_partition, log_offset"
        )
        messages = f"SELECT * FROM {MESSAGES.name} VERSION AS OF {version:d} WHERE {where}"  # noqa: S608
        kept = ("tenant", "topic", "client_id", "payload", "ts")
        columns = ", ".join(
            f"coalesce(m.{column.name}, d.{column.name}) AS {column.name}"
            if column.name in kept
            else f"m.{column.name}"
            for column in MESSAGES.columns
            if column.name not in ("log_partition", "log_offset")
        )
        both = (
            f"SELECT d.log_partition, d.log_offset, {columns} FROM ({letters}) d LEFT JOIN"  # noqa: S608
            f" ({messages}) m ON d.log_partition = m.log_partition AND d.log_offset = m.log_offset"
        )
        rows = f"SELECT {history.MESSAGES_STORED.row} FROM ({both})"  # noqa: S608
        if unguarded:
            return f"SELECT {self._order.expression} AS outputs FROM ({rows})"  # noqa: S608
        matched = history.matches(self._order.compiled.filters)
        result = history.guarded(self._order.expression)
        names = "id, topic, clientid, timestamp, log_partition, log_offset"
        return (
            f"SELECT {names}, {matched} AS matched, CASE WHEN {matched} THEN {result}"  # noqa: S608
            f" ELSE X'' END AS result FROM ({rows}) ORDER BY log_partition, log_offset"
        )

    def _records(self, row: Row) -> list[Append] | None:
        """Return the outputs of a message; None when it stays a dead letter."""
        order = self._order
        result: bytes | None = row["result"]
        if not row["matched"]:
            self._counts["not_matched"] += 1
            return None
        if result is None:
            self._counts["failed"] += 1
            self._explain(row)
            return None
        client_id: str = row["clientid"] or ""
        chain: tuple[str, ...] = ()
        if client_id.startswith(_CLIENT_PREFIX):
            chain = (client_id.removeprefix(_CLIENT_PREFIX),)
            if chain == (order.rule_id,):
                self._counts["loops"] += 1
                return None
        self._counts["passed" if result else "no_result"] += 1
        key = rule_record_key(order.tenant, order.rule_id)
        records = []
        for index, line in enumerate(result.split(b"\n") if result else ()):
            output = Output(
                tenant=order.tenant,
                rule=order.rule_id,
                version=order.version,
                row=line,
                position=Position(RERUN, row["log_partition"], row["log_offset"], index),
                received_at_ms=row["timestamp"],
                topic_name=row["topic"],
                client_id=client_id,
                message_id=bytes.fromhex(row["id"]) if row["id"] else None,
                chain=chain,
            )
            records.append(Append(row["log_partition"], key, line, output_headers(output)))
        return records

    def _explain(self, row: Row) -> None:
        """Evaluate a failure once more, unguarded: that is how Spark says what is wrong."""
        if len(self._errors) >= MAX_ERRORS:
            return
        place = (row["log_partition"] << history.OFFSET_BITS) + row["log_offset"]
        version = int(self._rows(f"DESCRIBE HISTORY {MESSAGES.name} LIMIT 1")[0]["version"])
        try:
            self._rows(self._evaluated(version, [place], unguarded=True))
        except EvaluationError as exc:
            self._errors.append(
                {
                    "topic": row["topic"],
                    "log_partition": row["log_partition"],
                    "log_offset": row["log_offset"],
                    "error": str(exc),
                }
            )

    def _mark(self, places: Sequence[Place]) -> None:
        """Say that messages are done with."""
        if not places:
            return
        order = self._order
        key = rule_record_key(order.tenant, order.rule_id)
        letters = (
            DeadLetter(
                tenant=order.tenant,
                rule=order.rule_id,
                version=order.version,
                value=b"",
                position=Position("i", partition, offset, 0),
                stage="rerun",
                error="",
                topic_name="",
                client_id="",
            )
            for partition, offset in places
        )
        records = [Append(0, key, b"", dead_letter_headers(letter)) for letter in letters]
        self._log.append_all(DEAD_LETTERS_TOPIC, records, what=f"marks of rule {order.rule_id!r}")
