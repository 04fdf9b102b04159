"""Run a stateful rule over history: which rows its windows, joins or detections would give.

One pass counts messages by outcome, another makes the rows, by hour of their time. The table
stands still meanwhile: its version is pinned.
"""

import json
import math
from collections import defaultdict
from typing import Any, Final

from api.jobs.jobs import Job
from api.rules import history, plans
from api.rules.dry_run import (
    MAX_ERRORS,
    MAX_SAMPLES,
    SHOWN,
    Compared,
    DryRunRange,
    RuleDryRun,
    message,
    totals,
)
from api.rules.times import HOUR_MS, shown_time
from api.spark.connect import EvaluationError, Row, SparkConnect
from rules.language.compiled import CompiledRule
from rules.language.plan import Plan
from rules.sql.confined import Confined, GivenRows

_OUTCOMES: Final = {
    "matched": "true",
    "passed": f"octet_length({plans.FOUND}) > 0",
    "no_result": f"octet_length({plans.FOUND}) = 0",
    "failed": f"{plans.FOUND} IS NULL",
}
_DIFFERENCE: Final = {
    "same": "sum(least(now, before))",
    "added": "sum(greatest(now - before, 0))",
    "removed": "sum(greatest(before - now, 0))",
}
_COUNTED: Final = 0.4
_MADE: Final = 0.8


def plan_dry_run(
    job: Job, connect: SparkConnect, rule: CompiledRule, range_: DryRunRange, other: Compared | None
) -> dict[str, Any]:
    """Do it; return the result as the API shows it.

    Raises:
        DryRunError: The history that the rule reads is in several tables.
        Cancelled: The job was cancelled.
        SparkAway: Spark does not answer.
    """
    with connect.session(history.SESSION_SETTINGS, job.cancelling.is_set) as spark:
        return _PlanDryRun(job, spark, rule, range_, other).run()


class _PlanDryRun(RuleDryRun):
    @property
    def _plan(self) -> Plan:
        assert self._rule.plan is not None
        return self._rule.plan

    def run(self) -> dict[str, Any]:
        self._job.advance(0.0, "reading the table's version")
        version = self.table_version()
        self._job.advance(0.01, "evaluating messages")
        counted = [
            row for one in self._plan.streams for row in self.rows(self._counts(one.name, version))
        ]
        self._job.advance(_COUNTED, "making windows")
        made = self.rows(self._by_hour(version))
        self._job.advance(_MADE, "comparing")
        outputs = totals(made, ("outputs", "rows_failed"))
        return {
            "table_version": version,
            **totals(counted, _OUTCOMES),
            "outputs": outputs["outputs"],
            "rows_failed": outputs["rows_failed"],
            "hours": _hours(counted, made),
            "samples": _samples(made),
            "errors": self._errors(version, counted),
            "difference": self._difference(version),
        }

    def _source(self, plan: Plan, name: str, version: int) -> GivenRows:
        """Return the messages or events of a stream, with the columns of a rule's row."""
        stream = next(one for one in plan.streams if one.name == name)
        conditions = [
            *history.between(self._range.from_ms, self._range.to_ms),
            f"({history.matches(stream.filters)})",
        ]
        where = " AND ".join(conditions)
        rows = self._stored.rows(version, self._range.tenant, where, self._range.limit)
        return self._as_messages(rows)

    def _as_messages(self, rows: GivenRows) -> GivenRows:
        """Return rows of the table with the columns of a rule's row."""
        return GivenRows(f"SELECT {self._stored.row} FROM ({rows.rows})", rows.reads)  # noqa: S608

    def _counts(self, name: str, version: int) -> Confined:
        """Return the query: hour -> outcomes of a stream's messages, positions of failures."""
        stream = next(one for one in self._plan.streams if one.name == name)
        counts = [f"count_if({condition}) AS {kind}" for kind, condition in _OUTCOMES.items()]
        failed = f"min(CASE WHEN {plans.FOUND} IS NULL THEN {history.POSITION} END) AS failed_at"
        evaluated = plans.evaluated(stream, history.STORED)
        query = (
            f"SELECT '{name}' AS stream, timestamp div {HOUR_MS} AS hour, {', '.join(counts)},"  # noqa: S608
            f" {failed} FROM ({evaluated}) GROUP BY hour ORDER BY hour"
        )
        return Confined(query, {history.STORED: self._source(self._plan, name, version)})

    def _output_rows(self, plan: Plan, version: int, mark: str = "") -> Confined:
        sources = {one.name: self._source(plan, one.name, version) for one in plan.streams}
        until = "NULL"
        if self._range.to_ms is not None:
            until = f"timestamp_millis({self._range.to_ms:d})"
        return plans.rows(plan, sources, self._range.tenant, until, mark)

    def _by_hour(self, version: int) -> Confined:
        """Return the query: hour -> how many rows, and some of them."""
        return self._output_rows(self._plan, version).inside(
            lambda outputs: (
                f"SELECT unix_millis(at) div {HOUR_MS} AS hour, count(row) AS outputs,"  # noqa: S608
                " count_if(row IS NULL) AS rows_failed,"
                f" min_by(struct(unix_millis(at) AS at, row), at, {MAX_SAMPLES})"
                " FILTER (WHERE row IS NOT NULL) AS samples"
                f" FROM ({outputs}) GROUP BY hour ORDER BY hour"
            )
        )

    def _errors(self, version: int, counted: list[Row]) -> list[dict[str, Any]]:
        """Evaluate again, one by one and unguarded, so that Spark tells the error."""
        failed = [row for row in counted if row["failed_at"] is not None][:MAX_ERRORS]
        found = []
        for row in failed:
            stream = next(one for one in self._plan.streams if one.name == row["stream"])
            at = history.at_positions([row["failed_at"]])
            rows = self._stored.rows(version, self._range.tenant, at)
            relations = {history.STORED: self._as_messages(rows)}
            evaluated = f"SELECT {plans.unguarded(stream)} FROM {history.STORED}"  # noqa: S608
            try:
                self.rows(Confined(evaluated, relations))
            except EvaluationError as exc:
                shown = f"topic, clientid, {SHOWN} AS payload, timestamp"
                query = f"SELECT {shown} FROM {history.STORED}"  # noqa: S608
                (failed_on,) = self.rows(Confined(query, relations))
                found.append({**message(failed_on, row["failed_at"]), "error": str(exc)})
        return found

    def _difference(self, version: int) -> dict[str, Any] | None:
        """Compare row by row with the other version; None without one that has memory too."""
        if self._other is None or self._other.rule.plan is None:
            return None
        now = self._output_rows(self._plan, version)
        before = self._output_rows(self._other.rule.plan, version, mark="_before")
        both = (
            f"SELECT at, row, 1 AS now, 0 AS before FROM ({now.sql}) UNION ALL"  # noqa: S608
            f" SELECT at, row, 0, 1 FROM ({before.sql})"
        )
        rows = (
            f"SELECT at, row, sum(now) AS now, sum(before) AS before FROM ({both}) GROUP BY at, row"  # noqa: S608
        )
        wanted = ", ".join(f"{sum_} AS {kind}" for kind, sum_ in _DIFFERENCE.items())
        limit = MAX_SAMPLES // 2
        samples = ", ".join(
            f"min_by(struct(unix_millis(at) AS at, row), at, {limit})"
            f" FILTER (WHERE {condition} AND row IS NOT NULL) AS {kind}_samples"
            for kind, condition in (("added", "now > before"), ("removed", "before > now"))
        )
        query = f"SELECT {wanted}, {samples} FROM ({rows})"  # noqa: S608
        (row,) = self.rows(Confined(query, {**now.relations, **before.relations}))
        return {
            "version": self._other.version,
            **{kind: row[kind] or 0 for kind in _DIFFERENCE},
            "samples": [
                {**_sample(one), "difference": kind}
                for kind in ("added", "removed")
                for one in row[f"{kind}_samples"] or ()
            ],
        }


def _hours(counted: list[Row], made: list[Row]) -> list[dict[str, Any]]:
    """Messages by the hour of their receipt, outputs by the hour of their own time."""
    by_hour: dict[int, dict[str, int]] = defaultdict(
        lambda: dict.fromkeys(("matched", "passed", "failed", "outputs"), 0)
    )
    for row in counted:
        for name in ("matched", "passed", "failed"):
            by_hour[row["hour"]][name] += row[name]
    for row in made:
        by_hour[row["hour"]]["outputs"] += row["outputs"]
    return [
        {"hour": shown_time(hour * HOUR_MS), **found} for hour, found in sorted(by_hour.items())
    ]


def _samples(made: list[Row]) -> list[dict[str, Any]]:
    """Return some rows, from all over the time."""
    each = math.ceil(MAX_SAMPLES / max(1, len(made)))
    found = [one for row in made for one in (row["samples"] or ())[:each]]
    step = max(1.0, len(found) / MAX_SAMPLES)
    return [_sample(found[int(at * step)]) for at in range(min(MAX_SAMPLES, len(found)))]


def _sample(row: Any) -> dict[str, Any]:
    return {"at": shown_time(row["at"]), "output": json.loads(row["row"])}
