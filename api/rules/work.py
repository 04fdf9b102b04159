"""The work of jobs over rules, made of their requests: at once, or when a job is resumed.

A request is JSON, so that it can be kept beside its job; see `Job.request`.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from api.jobs.jobs import Job, NotResumable, Work
from api.log.appending import LogAppender
from api.log.repository import append
from api.references.materialised import MaterialisedReferences
from api.rules import rerun
from api.rules.backfill import BackfillError, BackfillOrder, backfill, live_range, missed_since
from api.rules.checking import compiled
from api.rules.dead_letters import Wanted
from api.rules.dry_run import TWO_TABLES, Compared, DryRunError, DryRunRange, dry_run, stored_of
from api.rules.materialised import Entry, MaterialisedRules
from api.rules.plan_dry_run import plan_dry_run
from api.rules.rerun_log import Begin, KafkaRerunLog, encode_begin
from api.spark.connect import SparkConnect
from mqlake.records.messages import RULES
from mqlake.records.rules import rerun_key
from rules.language.compiled import CompiledRule
from rules.model import Rule

NO_BACKFILL: Final = (
    "the rule has memory (windows, joins, detections): it begins empty, a dry run shows what it "
    "makes of history"
)


@dataclass(frozen=True, slots=True)
class RuleWorks:
    """Makes the work of jobs over rules.

    Attributes:
        connect: Opens sessions of Spark.
        log: Takes outputs.
        view: Knows whether a rule has changed, and where its last rerun began.
        references: Know the columns of reference tables.
    """

    connect: SparkConnect
    log: LogAppender
    view: MaterialisedRules
    references: MaterialisedReferences

    def dry_run_request(
        self, tenant: str, sql: str, range_: dict[str, int | None], other: Rule | None
    ) -> dict[str, Any]:
        """Return the request that `dry_run` takes.

        Args:
            tenant: Owner of the messages.
            sql: SQL of the rule.
            range_: Fields of `DryRunRange` without the tenant.
            other: Rule to compare with; it is left out when it is the same, or stateful beside a
                stateless rule.

        Raises:
            DryRunError: The history that it reads is in several tables.
            RuleError: One of them is no rule.
        """
        schemas, columns = self.view.schemas(tenant), self.references.columns(tenant)
        rule = compiled(sql, schemas, columns)
        stored = stored_of(rule)
        if stored is None:
            raise DryRunError(TWO_TABLES)
        compared = None
        if other is not None:
            made = compiled(other.sql, schemas, columns)
            is_alike = stored_of(made) == stored and (made.plan is None) == (rule.plan is None)
            is_same = (made.expression, made.plan, made.filters) == (
                rule.expression,
                rule.plan,
                rule.filters,
            )
            if is_alike and not is_same:
                compared = {"sql": other.sql, "version": other.version}
        return {"sql": sql, "range": range_, "other": compared}

    def dry_run(self, tenant: str, request: dict[str, Any]) -> Work:
        """Return the work of a dry run.

        Args:
            tenant: Owner of the messages.
            request: `sql`; `range`, the fields of `DryRunRange` without the tenant; `other`, null
                or `sql` and `version` of the rule to compare with.

        Raises:
            RuleError: The SQL is no rule (any more).
        """
        schemas, columns = self.view.schemas(tenant), self.references.columns(tenant)
        rule = compiled(request["sql"], schemas, columns)
        range_ = DryRunRange(tenant, **request["range"])
        other = request["other"]
        compared = (
            None
            if other is None
            else Compared(compiled(other["sql"], schemas, columns), other["version"])
        )
        run = dry_run if rule.plan is None else plan_dry_run
        return lambda job: run(job, self.connect, rule, range_, compared)

    def backfill(self, entry: Entry, request: dict[str, Any]) -> Work:
        """Return the work of a backfill.

        Args:
            entry: The rule as it is now.
            request: `version`, `from_ms`, `rate` and `missed`, whether it is only for messages that
                the rule has missed while it was stopped.

        Raises:
            BackfillError: The rule has memory, or does not run.
            NotResumable: It has changed.
            RuleError: Its SQL is no rule (any more).
        """
        rule = entry.rule
        if rule.version != request["version"]:
            raise NotResumable(
                f"rule {rule.id!r} is at version {rule.version}, the job is of version "
                f"{request['version']}"
            )
        order = BackfillOrder(
            rule.tenant,
            rule.id,
            rule.version,
            _without_memory(entry),
            live_range(entry),
            from_ms=request["from_ms"],
            rate=request["rate"],
            # Jobs of before have it not.
            since=missed_since(entry) if request.get("missed") else (),
        )
        current = partial(self.view.get, rule.tenant, rule.id)
        return lambda job: backfill(job, order, self.connect, self.log, current)

    def rerun(self, entry: Entry, request: dict[str, Any]) -> Work:
        """Return the work of a rerun, by the rule as it is now: also when it is resumed.

        Args:
            entry: The rule as it is now.
            request: `error`, `from_ms`, `to_ms` and `rate`.

        Raises:
            RerunError: It cannot run them, see `rerun.why_not`.
            RuleError: Its SQL is no rule (any more).
        """
        made = compiled(entry.rule.sql, entry.schemas)
        problem = rerun.why_not(made)
        if problem is not None:
            raise rerun.RerunError(problem)
        tenant, rule_id = entry.rule.tenant, entry.rule.id
        wanted = Wanted(
            tenant, rule_id, "evaluate", request["error"], request["from_ms"], request["to_ms"]
        )
        order = rerun.RerunOrder(entry.rule.version, made, wanted, request["rate"])

        def work(job: Job) -> dict[str, Any]:
            return rerun.rerun(
                job,
                order,
                self.connect,
                self.log,
                KafkaRerunLog(self.log.servers),
                self.view.rerun_begin(tenant, rule_id),
                partial(self._keep, tenant, rule_id),
                partial(self.view.get, tenant, rule_id),
            )

        return work

    def _keep(self, tenant: str, rule_id: str, begin: Begin) -> None:
        """Keep where a run begins: the next run looks at its records from there on."""
        record = rerun_key(tenant, rule_id), encode_begin(begin)
        append(self.log, self.view, RULES, [record], what=f"rerun of rule {rule_id!r}")


def check_missed(entry: Entry) -> None:
    """Accept a paused rule that may go on from where it paused.

    Raises:
        BackfillError: It has memory, or reads no messages.
        RuleError: Its SQL is no rule (any more).
    """
    if _without_memory(entry).is_events:
        raise BackfillError(f"rule {entry.rule.id!r} does not read messages")


def _without_memory(entry: Entry) -> CompiledRule:
    made = compiled(entry.rule.sql, entry.schemas)
    if made.plan is not None:
        raise BackfillError(NO_BACKFILL)
    return made
