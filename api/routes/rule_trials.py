"""Rules tried out: on a made-up message, over history."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from api.dependencies import Book, Connect, Log, RunningJobs, State, unavailable
from api.jobs import TooManyJobs
from api.pages import DEFAULT_TENANT, Tenant
from api.problems import Problem, ProblemDetails, RuleProblemDetails
from api.routes.rule_versions import find_version
from api.routes.rules import RuleIdPath, existing
from api.rules.backfill import BackfillError, Order, backfill, live_range
from api.rules.book import RuleBook
from api.rules.checking import compiled
from api.rules.dry_run import Compared, Range, dry_run
from api.rules.samples import InvalidContext, make_sample
from api.rules.trial import try_rule
from api.rules.views import JobView, view_job
from mqlake.clock import SystemClock
from rules.language import CompiledRule
from rules.model import MAX_SQL_CHARACTERS

router = APIRouter(
    tags=["rules"],
    responses={
        422: {"model": RuleProblemDetails},
        503: {"model": ProblemDetails},
    },
)

MAX_LIMIT = 5_000_000
_clock = SystemClock()


class RuleTest(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "sql": "SELECT payload.celsius AS c FROM 'plant/+/temperature' "
                    "WHERE payload.celsius > 80",
                    "context": {
                        "topic": "plant/1/temperature",
                        "payload": '{"celsius": 91.5}',
                        "clientid": "sensor-1",
                        "qos": 1,
                    },
                }
            ]
        },
    )

    sql: str = Field(max_length=MAX_SQL_CHARACTERS)
    context: dict[str, Any] = Field(
        default_factory=dict,
        description="the message: topic, payload (text, or a JSON value), payload_base64, "
        "clientid, username, qos, retain, dup, properties, user_properties, …; of an event its "
        "columns, see GET /rule_events. What is left out is made up, or absent where it can be",
    )


class NoMatch(BaseModel):
    """Why nothing came out."""

    detail: str
    condition: str | None = Field(description="the condition that is not true, as the rule has it")
    values: dict[str, Any] = Field(description="what the condition reads, with its values")
    missing: list[str] = Field(description="what the condition reads and the message has not")


class RuleTestResult(BaseModel):
    matched: bool = Field(description="whether there are outputs")
    outputs: list[Any] = Field(description="JSON objects; several with FOREACH")
    error: str | None = Field(description="the evaluation failed: live this is a dead letter")
    reason: NoMatch | None = Field(description="why there is no output")


class DryRun(BaseModel):
    """Which messages, and which form of the rule."""

    model_config = ConfigDict(
        extra="forbid",
        populate_by_name=True,
        json_schema_extra={
            "examples": [
                {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"},
                {"sql": "SELECT * FROM 'plant/#' WHERE payload.celsius > 70", "limit": 100_000},
            ]
        },
    )

    from_: datetime | None = Field(default=None, alias="from", description="received not before")
    to: datetime | None = Field(default=None, description="received before")
    table_version: int | None = Field(
        default=None, ge=0, description="of the table `messages`: as it was then"
    )
    limit: int | None = Field(
        default=None, ge=1, le=MAX_LIMIT, description="only so many messages, the newest"
    )
    sql: str | None = Field(
        default=None, max_length=MAX_SQL_CHARACTERS, description="another text of the rule"
    )
    version: int | None = Field(
        default=None, ge=1, description="another version of the rule; null: the newest"
    )
    compare_version: int | None = Field(
        default=None,
        ge=1,
        description="version that the result is compared with; null: the one that runs, when it is "
        "another",
    )


class Backfill(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        populate_by_name=True,
        json_schema_extra={"examples": [{"from": "2026-01-01T00:00:00Z", "rate": 500}]},
    )

    from_: datetime | None = Field(
        default=None, alias="from", description="only what was received since; null: everything"
    )
    rate: int = Field(default=1_000, ge=1, le=50_000, description="outputs a second, at most")


@router.post("/rule_test")
def post_rule_test(
    connect: Connect, test: RuleTest, tenant: Tenant = DEFAULT_TENANT
) -> RuleTestResult:
    """Evaluate a rule on one made-up message; nothing is published and nothing kept.

    Spark evaluates the expression that would run live. The first test after a start may take
    seconds.
    """
    rule = compiled(test.sql)
    try:
        sample = make_sample(rule, test.context, tenant, _clock.now_ms())
    except InvalidContext as exc:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(exc)) from exc
    with unavailable():
        outcome = try_rule(rule, sample, connect)
    reason = outcome.reason
    return RuleTestResult(
        matched=bool(outcome.outputs),
        outputs=list(outcome.outputs),
        error=outcome.error,
        reason=None
        if reason is None
        else NoMatch(
            detail=reason.sentence,
            condition=reason.condition,
            values=reason.values,
            missing=list(reason.missing),
        ),
    )


@router.post(
    "/rules/{id}/dry_run",
    status_code=HTTPStatus.ACCEPTED,
    responses={404: {"model": ProblemDetails}, 429: {"model": ProblemDetails}},
)
def post_dry_run(
    book: Book,
    connect: Connect,
    jobs: RunningJobs,
    rule_id: RuleIdPath,
    asked: DryRun | None = None,
    tenant: Annotated[str, Query(min_length=1)] = DEFAULT_TENANT,
) -> JobView:
    """Evaluate a rule on messages that were stored, as a job; no action runs.

    The result of the job counts, in all and by hour, the messages that a filter matched, that gave
    outputs, that gave none and that failed; it has examples of outputs and of failures, and the
    difference to the version that runs. With `sql`, the rule need not exist.
    """
    asked = asked or DryRun()
    rule = _asked_rule(book, tenant, rule_id, asked)
    if rule.is_events:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "the rule reads events: not supported, only messages are kept as they are evaluated",
        )
    range_ = Range(tenant, _ms(asked.from_), _ms(asked.to), asked.table_version, asked.limit)
    other = _other(book, tenant, rule_id, asked, rule)
    try:
        job = jobs.start(
            "dry_run", tenant, rule_id, lambda job: dry_run(job, connect, rule, range_, other)
        )
    except TooManyJobs as exc:
        raise Problem(HTTPStatus.TOO_MANY_REQUESTS, str(exc)) from exc
    return view_job(job, now_ms=_clock.now_ms(), with_result=False)


@router.post(
    "/rules/{id}/backfill",
    status_code=HTTPStatus.ACCEPTED,
    responses={code: {"model": ProblemDetails} for code in (404, 409, 429)},
)
def post_backfill(
    state: State,
    book: Book,
    connect: Connect,
    log: Log,
    jobs: RunningJobs,
    rule_id: RuleIdPath,
    asked: Backfill | None = None,
    tenant: Annotated[str, Query(min_length=1)] = DEFAULT_TENANT,
) -> JobView:
    """Give the actions of a running rule what it makes of history, as a job.

    That is of every stored message before its newest version came into force: live evaluation
    has each one from there on, so that none is left out and none taken twice. The outputs are in
    the order of the log; those whose evaluation fails are counted. A second backfill of the same
    rule gives its outputs again, with other identifiers.
    """
    asked = asked or Backfill()
    entry = existing(book, tenant, rule_id)
    rule = compiled(entry.rule.sql)
    try:
        live = live_range(entry)
    except BackfillError as exc:
        raise Problem(HTTPStatus.CONFLICT, str(exc)) from exc
    version = entry.rule.version
    order = Order(tenant, rule_id, version, rule, live, _ms(asked.from_), asked.rate)
    if any(
        (job.kind, job.tenant, job.rule_id) == ("backfill", tenant, rule_id)
        and job.finished_at is None
        for job in jobs.all()
    ):
        raise Problem(HTTPStatus.CONFLICT, f"a backfill of rule {rule_id!r} is under way")
    try:
        job = jobs.start(
            "backfill",
            tenant,
            rule_id,
            lambda job: backfill(
                job,
                order,
                connect,
                log,
                state.bootstrap_servers,
                lambda: book.get(tenant, rule_id),
            ),
        )
    except TooManyJobs as exc:
        raise Problem(HTTPStatus.TOO_MANY_REQUESTS, str(exc)) from exc
    return view_job(job, now_ms=_clock.now_ms(), with_result=False)


def _asked_rule(book: RuleBook, tenant: str, rule_id: str, asked: DryRun) -> CompiledRule:
    if asked.sql is not None:
        if asked.version is not None:
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "give sql or version, not both")
        return compiled(asked.sql)
    if asked.version is not None:
        return compiled(find_version(book, tenant, rule_id, asked.version).sql)
    return compiled(existing(book, tenant, rule_id).rule.sql)


def _other(
    book: RuleBook, tenant: str, rule_id: str, asked: DryRun, rule: CompiledRule
) -> Compared | None:
    """Return what to compare with; None when it is the same rule, or there is none."""
    if asked.compare_version is not None:
        found = find_version(book, tenant, rule_id, asked.compare_version)
    else:
        entry = book.get(tenant, rule_id)
        if entry is None or entry.state != "running":
            return None
        found = entry.rule
    other = compiled(found.sql)
    if other.is_events:
        return None
    is_same = (other.expression, other.filters) == (rule.expression, rule.filters)
    return None if is_same else Compared(other, found.version)


def _ms(time: datetime | None) -> int | None:
    if time is None:
        return None
    if time.tzinfo is None:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY, f"{time.isoformat()} has no time zone: end it in Z"
        )
    return round(time.timestamp() * 1000)
