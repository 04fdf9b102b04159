"""What jobs over rules do, made of what was asked for: at once, or when a job is resumed.

A request is JSON, so that it can be kept beside its job; see `Job.request`.
"""

from collections.abc import Mapping
from typing import Any, Final

from api.following import Followed
from api.jobs import Job, NotResumable, Work
from api.log import Append, LogAppender
from api.rules import rerun
from api.rules.backfill import BackfillError, Order, backfill, live_range, missed_since
from api.rules.book import Entry, RuleBook
from api.rules.checking import compiled
from api.rules.dead_letters import Wanted
from api.rules.dry_run import Compared, Range, dry_run
from api.rules.plan_dry_run import plan_dry_run
from api.rules.rerun_log import Begin, KafkaRerunLog, encode_begin
from api.spark import SparkConnect
from mqlake.record_versions import VERSION_HEADER
from mqlake.records import RULES
from mqlake.reference_records import Columns
from mqlake.rule_records import rerun_key
from rules.language.compiled import CompiledRule
from rules.schemas.registry import Schemas

NO_BACKFILL: Final = (
    "the rule has memory (windows, joins, detections): it begins empty, a dry run shows what it "
    "makes of history"
)


def dry_run_work(
    connect: SparkConnect,
    tenant: str,
    schemas: Schemas,
    references: Mapping[str, Columns],
    request: dict[str, Any],
) -> Work:
    """Return what does a dry run.

    Args:
        connect: Where Spark is.
        tenant: Whose messages.
        schemas: Of the tenant.
        references: Columns of each reference table of the tenant.
        request: `sql`; `range`, the fields of `Range` without the tenant; `other`, null or `sql`
            and `version` of what to compare with.

    Raises:
        RuleError: The SQL is no rule (any more).
    """
    rule = compiled(request["sql"], schemas, references)
    range_ = Range(tenant, **request["range"])
    other = request["other"]
    compared = (
        None
        if other is None
        else Compared(compiled(other["sql"], schemas, references), other["version"])
    )
    run = dry_run if rule.plan is None else plan_dry_run

    def work(job: Job) -> dict[str, Any]:
        return run(job, connect, rule, range_, compared)

    return work


def backfill_work(
    connect: SparkConnect,
    log: LogAppender,
    bootstrap_servers: str,
    book: RuleBook,
    entry: Entry,
    request: dict[str, Any],
) -> Work:
    """Return what does a backfill.

    Args:
        connect: Where Spark is.
        log: Takes the outputs.
        bootstrap_servers: Where the log is.
        book: Knows whether the rule has changed.
        entry: The rule as it is now.
        request: `version`, `from_ms`, `rate` and `missed`, whether it is only what the rule has
            missed while it was stopped.

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
    made = _without_memory(entry)
    order = Order(
        *(rule.tenant, rule.id, rule.version, made, live_range(entry)),
        from_ms=request["from_ms"],
        rate=request["rate"],
        since=missed_since(entry) if request.get("missed") else (),  # jobs of before have it not
    )

    def work(job: Job) -> dict[str, Any]:
        return backfill(
            job, order, connect, log, bootstrap_servers, lambda: book.get(rule.tenant, rule.id)
        )

    return work


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


def rerun_work(
    connect: SparkConnect,
    log: LogAppender,
    bootstrap_servers: str,
    book: RuleBook,
    entry: Entry,
    request: dict[str, Any],
) -> Work:
    """Return what runs dead letters again, by the rule as it is now: also when it is resumed.

    Args:
        connect: Where Spark is.
        log: Takes the outputs.
        bootstrap_servers: Where the log is.
        book: Knows where the last run began, and whether the rule has changed.
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
        *(tenant, rule_id, "evaluate", request["error"], request["from_ms"], request["to_ms"])
    )
    order = rerun.Order(entry.rule.version, made, wanted, request["rate"])

    def keep(begin: Begin) -> None:
        """Keep where a run begins: what it writes from there on the next run looks at."""
        headers = [VERSION_HEADER]
        record = Append(0, rerun_key(tenant, rule_id), encode_begin(begin), headers)
        what = f"rerun of rule {rule_id!r}"
        (offset,) = log.append_all(bootstrap_servers, RULES, [record], what=what)
        book.take([Followed(RULES, offset, record.key, record.value)], is_old=False)

    def work(job: Job) -> dict[str, Any]:
        return rerun.rerun(
            job,
            order,
            connect,
            log,
            KafkaRerunLog(bootstrap_servers),
            bootstrap_servers,
            book.rerun_begin(tenant, rule_id),
            keep,
            lambda: book.get(tenant, rule_id),
        )

    return work
