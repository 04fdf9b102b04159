"""Run dead letters again: messages that a rule could not evaluate, by the rule as it is now.

An output's identifier is made of the message's position, as the engine's is, with the source `r`.
Outputs go into the log before the mark that says the message is done with; a run that was killed
between them has left outputs, which the next one finds in the log (`rerun_log`). So no message is
taken twice, however often one asks. Readers keep no mark of the source `r`: its positions come in
any order.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from api.jobs.jobs import Job
from api.log.appending import LogAppender
from api.rules import history
from api.rules.dead_letters import Wanted, places_query
from api.rules.materialised import Entry
from api.rules.rerun_log import Begin, Place, RerunLog
from api.rules.run import RuleRun
from api.spark.connect import EvaluationError, Row, Spark, SparkConnect
from mqlake.errors import MqlakeError
from mqlake.log.blocking import Append
from mqlake.records.messages import DEAD_LETTERS as DEAD_LETTERS_TOPIC
from mqlake.records.messages import INBOUND, OUTPUTS
from mqlake.records.outputs import RERUN, DeadLetter, Position, dead_letter_headers, rule_record_key
from mqlake.tables.catalogue import DEAD_LETTERS, MESSAGES
from rules.language.compiled import CompiledRule
from rules.sql.confined import Confined, GivenRows

PAGE: Final = 500
"""Messages that are evaluated at a time."""
MAX_ERRORS: Final = 5


class RerunError(MqlakeError):
    """It cannot go on."""


@dataclass(frozen=True, slots=True)
class RerunOrder:
    """The order for a rerun.

    Attributes:
        version: Running version of the rule.
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
    """Do it; return its result.

    Args:
        job: Says how far it is.
        order: Request of the job, checked.
        connect: Opens sessions of Spark.
        log: Takes outputs and marks.
        reader: Reads the log.
        before: Beginning of the run before.
        begin: Stores the beginning of this run in the log.
        current: Returns the rule as it is now: a run ends when it has changed.

    Raises:
        RerunError: The rule has changed, or the table does not follow the log.
        LogError: The log does not answer.
        Cancelled: The job was cancelled; letters that were done stay done.
        SparkAway: Spark does not answer.
    """
    with connect.session(history.SESSION_SETTINGS, job.cancelling.is_set) as spark:
        run = _Rerun(job, order, spark, log, reader, current)
        job.advance(0.0, "reading what was run again before")
        run.recover(before)
        begin(reader.ends())
        return run.run()


class _Rerun(RuleRun[RerunOrder]):
    error = RerunError

    def __init__(
        self,
        job: Job,
        order: RerunOrder,
        spark: Spark,
        log: LogAppender,
        reader: RerunLog,
        current: Callable[[], Entry | None],
    ) -> None:
        super().__init__(job, order, spark, log, current, source=RERUN)
        self._reader = reader
        self._counts = dict.fromkeys(
            ("letters", "passed", "no_result", "failed", "not_matched", "loops"), 0
        )
        self._errors: list[dict[str, Any]] = []

    def run(self) -> dict[str, Any]:
        total = self.rows(places_query(self._order.wanted, None, None))[0]["places"]
        version = self.version_of(MESSAGES.name)
        after: int | None = None
        while True:
            self.check()
            rows = self.rows(places_query(self._order.wanted, after, PAGE))
            if not rows:
                break
            places = [row["position"] for row in rows]
            self._run_page(version, places)
            after = places[-1]
            progress = self._counts["letters"] / max(1, total)
            self._job.advance(progress, f"{self._outputs:,} outputs")
        return {
            "version": self._order.version,
            **self._counts,
            "outputs": self._outputs,
            "errors": self._errors,
        }

    # Recovery of the run before

    def recover(self, before: Begin | None) -> None:
        """Mark the letters that the run before has done, and wait until the table has all marks."""
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
        query = (
            f"SELECT count(*) AS found FROM {DEAD_LETTERS.name} WHERE stage = 'rerun'"  # noqa: S608
            f" AND tenant = {history.text(self._order.tenant)}"
            f" AND rule = {history.text(self._order.rule_id)}"
            f" AND log_partition = {place[0]:d} AND log_offset = {place[1]:d}"
        )
        note = "waiting for the table to have the run before"
        self.await_table(DEAD_LETTERS.name, lambda: bool(self.rows(query)[0]["found"]), note)

    # A page

    def _run_page(self, version: int, places: Sequence[int]) -> None:
        done: list[Place] = []
        records: list[Append] = []
        for row in self.rows(self._evaluated(version, places)):
            self._counts["letters"] += 1
            place = (row["log_partition"], row["log_offset"])
            made = self._records(row)
            if made is not None:
                records += made
                done.append(place)
        self.check()
        if records:
            self.wait(len(records))
            self.append(OUTPUTS, records)
            self._outputs += len(records)
        self._mark(done)

    def _evaluated(
        self, version: int, places: Iterable[int], *, unguarded: bool = False
    ) -> Confined:
        """Return the query that evaluates: one row for each message.

        Messages that are no longer in the table are made from their letters.
        """
        where = history.of_tenant(self._order.tenant, places)
        letters = (
            "SELECT log_partition, log_offset, any_value(tenant) AS tenant, any_value(topic)"  # noqa: S608
            " AS topic, any_value(client_id) AS client_id, any_value(value) AS payload, min(ts) AS"
            f" ts FROM {DEAD_LETTERS.name} WHERE {where} AND stage = 'evaluate'"
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
        relations = {history.STORED: GivenRows(both, (DEAD_LETTERS.name, MESSAGES.name))}
        rows = f"SELECT {history.MESSAGES_STORED.row} FROM {history.STORED}"  # noqa: S608
        if unguarded:
            query = f"SELECT {self._order.expression} AS outputs FROM ({rows})"  # noqa: S608
            return Confined(query, relations)
        matched = history.matches(self._order.compiled.filters)
        result = history.guarded(self._order.expression)
        names = "id, topic, clientid, timestamp, log_partition, log_offset"
        query = (
            f"SELECT {names}, {matched} AS matched, CASE WHEN {matched} THEN {result}"  # noqa: S608
            f" ELSE X'' END AS result FROM ({rows}) ORDER BY log_partition, log_offset"
        )
        return Confined(query, relations)

    def _records(self, row: Row) -> list[Append] | None:
        """Return the outputs of a message; None when it stays a dead letter."""
        if not row["matched"]:
            self._counts["not_matched"] += 1
            return None
        if row["result"] is None:
            self._counts["failed"] += 1
            self._explain(row)
            return None
        records = self.outputs_of(row)
        if records is None:
            self._counts["loops"] += 1
        else:
            self._counts["passed" if row["result"] else "no_result"] += 1
        return records

    def _explain(self, row: Row) -> None:
        """Evaluate a failure once more, unguarded, so that Spark tells the error."""
        if len(self._errors) >= MAX_ERRORS:
            return
        place = (row["log_partition"] << history.OFFSET_BITS) + row["log_offset"]
        version = self.version_of(MESSAGES.name)
        try:
            self.rows(self._evaluated(version, [place], unguarded=True))
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
        self.append(DEAD_LETTERS_TOPIC, records)
