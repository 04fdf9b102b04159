"""Run a rule over history: its matches and outputs, without its actions.

One pass over the table counts, by hour; positions of a few examples come with the counts, and a
second, small query fetches those. The table stands still meanwhile: its version is pinned.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from api.jobs.jobs import Job
from api.rules import history
from api.rules.run import HistoryRun
from api.rules.times import HOUR_MS, shown_time
from api.spark.connect import EvaluationError, Row, Spark, SparkConnect
from mqlake.errors import MqlakeError
from rules.language.compiled import CompiledRule
from rules.sql.confined import Confined

MAX_SAMPLES: Final = 10
MAX_ERRORS: Final = 5
_BUCKETS: Final = 10
"""An hour gives that many examples of each kind, at most."""
_COUNTED: Final = 0.95
"""Share of the progress that counting takes."""

_NEWLINES: Final = "octet_length({0}) - octet_length(replace(CAST({0} AS STRING), '\\n', ''))"

SHOWN: Final = "coalesce(payload, CAST(to_json(event_fields) AS BINARY))"
"""Payload of a message, or the fields of an event."""
TWO_TABLES: Final = (
    "messages, message_dropped and other events have their history in a table each, and a dry run "
    "reads one: make two rules of it"
)


class DryRunError(MqlakeError):
    """It cannot be run over history: see `TWO_TABLES`."""


@dataclass(frozen=True, slots=True)
class DryRunRange:
    """A range of stored messages.

    Attributes:
        from_ms: Not before this time; None: from the first.
        to_ms: Before this time; None: to the last.
        table_version: As the table was then; None: as it is now.
        limit: Number of those to take, the newest; None: all.
    """

    tenant: str
    from_ms: int | None = None
    to_ms: int | None = None
    table_version: int | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Compared:
    """Another version of the rule, with its number."""

    rule: CompiledRule
    version: int | None


def stored_of(rule: CompiledRule) -> history.StoredHistory | None:
    """Return the table with the history of all that a rule reads; None: it is in several."""
    sources = [rule.filters] if rule.plan is None else [one.filters for one in rule.plan.streams]
    first, *others = map(history.stored_for, sources)
    return first if all(one == first for one in others) else None


def dry_run(
    job: Job, connect: SparkConnect, rule: CompiledRule, range_: DryRunRange, other: Compared | None
) -> dict[str, Any]:
    """Do it; return the result as the API shows it.

    Raises:
        DryRunError: The history that the rule reads is in several tables.
        Cancelled: The job was cancelled.
        SparkAway: Spark does not answer.
    """
    with connect.session(history.SESSION_SETTINGS, job.cancelling.is_set) as spark:
        return _StatelessDryRun(job, spark, rule, range_, other).run()


class RuleDryRun(HistoryRun):
    """A run that shows its outputs, and appends none."""

    query_seconds = 3_600.0

    def __init__(
        self,
        job: Job,
        spark: Spark,
        rule: CompiledRule,
        range_: DryRunRange,
        other: Compared | None,
    ) -> None:
        super().__init__(job, spark)
        stored = stored_of(rule)
        if stored is None:
            raise DryRunError(TWO_TABLES)
        self._stored = stored
        self._rule = rule
        self._range = range_
        self._other = other

    def table_version(self) -> int:
        """Return the version of the table that is read."""
        if self._range.table_version is not None:
            return self._range.table_version
        return self.version_of(self._stored.table)


class _StatelessDryRun(RuleDryRun):
    @property
    def _expression(self) -> str:
        assert self._rule.expression is not None, "the rule has memory"
        return self._rule.expression

    def run(self) -> dict[str, Any]:
        self._job.advance(0.0, "reading the table's version")
        version = self.table_version()
        self._job.advance(0.01, "evaluating")
        counted = self.rows(
            self._count_query(version),
            progress=lambda done: self._job.advance(done * _COUNTED, "evaluating"),
        )
        self._job.advance(_COUNTED, "fetching examples")
        result: dict[str, Any] = {
            "table_version": version,
            **totals(counted, ("matched", "passed", "failed", "outputs")),
        }
        result["no_result"] = result["matched"] - result["passed"] - result["failed"]
        result["hours"] = _hours(counted)
        result["samples"] = self._samples(version, _examples(counted, "passed_at", MAX_SAMPLES))
        result["errors"] = self._errors(version, _examples(counted, "failed_at", MAX_ERRORS))
        result["difference"] = self._difference(version, counted)
        return result

    def _count_query(self, version: int) -> Confined:
        """Return the query: hour, bucket -> counts and least positions."""
        kinds = {"passed_at": "result_outputs > 0", "failed_at": "result_outputs < 0"}
        sums = {
            "matched": "matched",
            "passed": "result_outputs > 0",
            "failed": "result_outputs < 0",
        }
        if self._other is not None:
            had = "matched_other AND other_outputs <> 0"
            has = "matched AND result_outputs <> 0"
            sums |= {
                "same": f"{has} AND {had} AND result <=> other",
                "changed": f"{has} AND {had} AND NOT result <=> other",
                "added": f"{has} AND NOT ({had})",
                "removed": f"{had} AND NOT ({has})",
            }
            kinds |= {f"{kind}_at": sums[kind] for kind in ("changed", "added", "removed")}
        wanted = [f"count_if({condition}) AS {name}" for name, condition in sums.items()]
        wanted.append("sum(CASE WHEN result_outputs > 0 THEN result_outputs END) AS outputs")
        wanted += [
            f"min(CASE WHEN {condition} THEN position END) AS {name}"
            for name, condition in kinds.items()
        ]
        counts = f"*, {_outputs('result')} AS result_outputs"
        if self._other is not None:
            counts += f", {_outputs('other')} AS other_outputs"
        return self._evaluated(version).inside(
            lambda evaluated: (
                f"SELECT hour, {', '.join(wanted)} FROM (SELECT {counts} FROM ({evaluated}))"  # noqa: S608
                " GROUP BY hour, bucket ORDER BY hour"
            )
        )

    def _evaluated(self, version: int, positions: Iterable[int] | None = None) -> Confined:
        """Return the query that evaluates: one row for each message."""
        conditions = []
        own = history.matches(self._rule.filters)
        either = own
        if self._other is not None:
            either = f"{own} OR {history.matches(self._other.rule.filters)}"
        if positions is not None:
            conditions.append(f"({history.at_positions(positions)})")
        else:
            conditions += history.between(self._range.from_ms, self._range.to_ms)
        conditions.append(f"({either})")
        newest = self._range.limit if positions is None else None
        where = " AND ".join(conditions)
        rows = self._stored.rows(version, self._range.tenant, where, newest)
        wanted = [
            f"unix_millis(ts) div {HOUR_MS} AS hour",
            f"pmod(log_offset * 7 + log_partition, {_BUCKETS}) AS bucket",
            f"{history.POSITION} AS position",
        ]
        if self._other is None:
            wanted += ["true AS matched", f"{history.guarded(self._expression)} AS result"]
        else:
            matched = history.matches(self._other.rule.filters)
            wanted += [
                f"({own}) AS matched",
                f"{_evaluate(self._rule, own)} AS result",
                f"({matched}) AS matched_other",
                f"{_evaluate(self._other.rule, matched)} AS other",
            ]
        if positions is not None:
            wanted += ["topic", "clientid", f"{SHOWN} AS payload"]
        # `ts` is no column of a rule's row.
        inner = f"SELECT {self._stored.row}, ts FROM {history.STORED}"  # noqa: S608
        query = f"SELECT {', '.join(wanted)}, timestamp FROM ({inner})"  # noqa: S608
        return Confined(query, {history.STORED: rows})

    def _in_order(self, version: int, positions: list[int]) -> list[Row]:
        """Evaluate on some positions; return their rows in the order of the log."""
        return self.rows(
            self._evaluated(version, positions).inside(
                lambda evaluated: f"{evaluated} ORDER BY position"
            )
        )

    def _samples(self, version: int, positions: list[int]) -> list[dict[str, Any]]:
        if not positions:
            return []
        return [
            {**message(row, row["position"]), "outputs": _read_outputs(row["result"])}
            for row in self._in_order(version, positions)
        ]

    def _errors(self, version: int, positions: list[int]) -> list[dict[str, Any]]:
        """Evaluate again, one by one and unguarded, so that Spark tells the error."""
        if not positions:
            return []
        found = []
        for row in self._in_order(version, positions):
            try:
                self.rows(
                    self._stored.unguarded(
                        version, self._range.tenant, row["position"], self._expression
                    )
                )
            except EvaluationError as exc:
                found.append({**message(row, row["position"]), "error": str(exc)})
        return found

    def _difference(self, version: int, counted: list[Row]) -> dict[str, Any] | None:
        if self._other is None:
            return None
        kinds = ("changed", "added", "removed")
        wanted = {kind: _examples(counted, f"{kind}_at", MAX_SAMPLES // 2) for kind in kinds}
        positions = sorted({one for found in wanted.values() for one in found})
        rows = {}
        if positions:
            rows = {row["position"]: row for row in self._in_order(version, positions)}
        samples = [
            {
                **message(rows[position], position),
                "difference": kind,
                "outputs": _read_outputs(rows[position]["result"]),
                "outputs_before": _read_outputs(rows[position]["other"]),
            }
            for kind in kinds
            for position in wanted[kind]
            if position in rows
        ]
        return {
            "version": self._other.version,
            **totals(counted, ("same", *kinds)),
            "samples": samples,
        }


def _evaluate(rule: CompiledRule, matched: str) -> str:
    assert rule.expression is not None
    return f"CASE WHEN {matched} THEN {history.guarded(rule.expression)} ELSE X'' END"


def _outputs(column: str) -> str:
    """Return the number of outputs; -1 for a failure."""
    return (
        f"CASE WHEN {column} IS NULL THEN -1 WHEN octet_length({column}) = 0 THEN 0"
        f" ELSE {_NEWLINES.format(column)} + 1 END"
    )


def _read_outputs(result: bytes | None) -> list[Any]:
    return [json.loads(line) for line in result.split(b"\n")] if result else []


def message(row: Row, position: int) -> dict[str, Any]:
    """Return a message as the API shows it."""
    partition, offset = history.read_position(position)
    payload: bytes = row["payload"] or b""
    return {
        "topic": row["topic"],
        "clientid": row["clientid"],
        "payload": payload[:4096].decode(errors="replace"),
        "received_at": shown_time(row["timestamp"]),
        "log_partition": partition,
        "log_offset": offset,
    }


def totals(rows: list[Row], names: Iterable[str]) -> dict[str, int]:
    return {name: sum(row[name] or 0 for row in rows) for name in names}


def _hours(rows: list[Row]) -> list[dict[str, Any]]:
    by_hour: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_hour[row["hour"]].append(row)
    names = ("matched", "passed", "failed", "outputs")
    return [
        {"hour": shown_time(hour * HOUR_MS), **totals(found, names)}
        for hour, found in sorted(by_hour.items())
    ]


def _examples(rows: list[Row], name: str, limit: int) -> list[int]:
    """Return some positions, from all over the time."""
    found = sorted((row["hour"], row[name]) for row in rows if row[name] is not None)
    step = max(1, len(found) / limit)
    return sorted({found[int(at * step)][1] for at in range(min(limit, len(found)))})
