"""Rules tried out: on a made-up message, over history."""

from datetime import datetime
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from api.access.callers import Caller
from api.entrance.authentication import CurrentCaller, for_tenants, for_topics, needs
from api.routes.rules.rules import RuleIdPath, existing
from api.routes.rules.versions import find_version
from api.routes.system.jobs import JobId, check_kind, is_shown, unknown_job
from api.rules.checking import compiled
from api.rules.materialised import MaterialisedRules
from api.rules.rights import tables_for
from api.rules.samples import make_sample
from api.rules.trial import try_rule
from api.rules.views import JobView, view_job
from api.sql.errors import QueryError
from api.web.pages import Tenant
from api.web.problems import Problem, ProblemDetails, RuleProblemDetails
from api.wiring.dependencies import AllRuns, Connect, KnownReferences, KnownRules
from mqlake.clock import SystemClock
from mqlake.records.tenants import DEFAULT_TENANT
from rules.model import MAX_SQL_CHARACTERS, Rule

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
        "clientid, username, qos, retain, dup, properties, user_properties, …; for an event its "
        "columns, see GET /rule_events. Omitted values are made up, or absent where "
        "possible",
    )


class NoMatch(BaseModel):
    """Why there is no output."""

    detail: str
    condition: str | None = Field(
        description="the condition that is not true, as written in the rule"
    )
    values: dict[str, Any] = Field(description="values read by the condition")
    missing: list[str] = Field(description="fields read by the condition that the message lacks")


class RuleTestResult(BaseModel):
    matched: bool = Field(description="whether there are outputs")
    outputs: list[Any] = Field(description="JSON objects; several with FOREACH")
    error: str | None = Field(description="the evaluation failed: a dead letter if live")
    reason: NoMatch | None = Field(description="why there is no output")


class DryRun(BaseModel):
    """The messages and the form of the rule in a dry run."""

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

    from_: datetime | None = Field(default=None, alias="from", description="received at or after")
    to: datetime | None = Field(default=None, description="received before")
    table_version: int | None = Field(
        default=None,
        ge=0,
        description="of the table `messages`, `events` or `drops`, for time travel",
    )
    limit: int | None = Field(
        default=None, ge=1, le=MAX_LIMIT, description="maximum number of messages, the newest"
    )
    sql: str | None = Field(
        default=None, max_length=MAX_SQL_CHARACTERS, description="other SQL for the rule"
    )
    version: int | None = Field(
        default=None, ge=1, description="another version of the rule; null: the newest"
    )
    compare_version: int | None = Field(
        default=None,
        ge=1,
        description="version to compare with; null: the running one, if it is another",
    )


@router.post("/rule_test", openapi_extra={**needs("viewer"), **for_topics()})
def post_rule_test(
    rules: KnownRules,
    connect: Connect,
    references: KnownReferences,
    caller: CurrentCaller,
    test: RuleTest,
    tenant: Tenant = DEFAULT_TENANT,
) -> RuleTestResult:
    """Test a rule.

    The rule is evaluated on one sample message; nothing is published or kept. A stateful rule gives
    its output for this message alone, for example the row of its window. Spark evaluates the
    expression that would run live. The first test after a start may take seconds.
    """
    columns = tables_for(caller, references.columns(tenant))
    rule = compiled(test.sql, rules.schemas(tenant), columns)
    sample = make_sample(rule, test.context, tenant, _clock.now_ms())
    outcome = try_rule(rule, sample, connect, tenant)
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
    "/rules/{id:segment}/dry_run",
    status_code=HTTPStatus.ACCEPTED,
    responses={404: {"model": ProblemDetails}, 429: {"model": ProblemDetails}},
)
def post_dry_run(
    rules: KnownRules,
    _references: KnownReferences,
    runs: AllRuns,
    caller: CurrentCaller,
    rule_id: RuleIdPath,
    asked: DryRun | None = None,
    tenant: Tenant = DEFAULT_TENANT,
) -> JobView:
    """Dry-run a rule.

    A job evaluates it on stored messages or events; no action runs. The result counts, in total and
    by hour, the messages that matched a filter, gave outputs, gave none and failed. It has examples
    of outputs and failures, and the difference to the running version. With `sql`, the rule need
    not exist.
    """
    asked = asked or DryRun()
    sql = _asked_sql(rules, caller, tenant, rule_id, asked)
    range_ = {
        "from_ms": to_ms(asked.from_),
        "to_ms": to_ms(asked.to),
        "table_version": asked.table_version,
        "limit": asked.limit,
    }
    other = _other(rules, caller, tenant, rule_id, asked.compare_version)
    request = runs.rules.dry_run_request(tenant, sql, range_, other)
    job = runs.start("dry_run", tenant, rule_id, request)
    return view_job(job, now_ms=_clock.now_ms(), with_result=False)


@router.post(
    "/jobs/{id:segment}/resume",
    status_code=HTTPStatus.ACCEPTED,
    responses={code: {"model": ProblemDetails} for code in (404, 409, 429)},
    openapi_extra=for_tenants(),
)
def post_resume(
    caller: CurrentCaller,
    rules: KnownRules,
    _references: KnownReferences,
    runs: AllRuns,
    job_id: JobId,
) -> JobView:
    """Resume a job.

    The job must be interrupted, failed or cancelled. A backfill continues where it stopped;
    messages that it evaluates again give the same outputs, which count once. A replay continues
    where it stopped, or up to two seconds before. A dry run starts again, and so does a rerun,
    which skips letters that are done. The deletion of a tenant continues with the step that was
    interrupted.
    """
    job = runs.jobs.get(job_id)
    if job is None or not is_shown(job, caller):
        raise unknown_job(job_id)
    check_kind(job, caller)
    if job.kind in ("backfill", "rerun"):
        existing(rules, caller, job.tenant, job.rule_id)
    try:
        resumed = runs.resume(job)
    except QueryError as exc:
        raise Problem(HTTPStatus.CONFLICT, str(exc)) from exc
    return view_job(resumed, now_ms=_clock.now_ms(), with_result=False)


def _asked_sql(
    rules: MaterialisedRules, caller: Caller, tenant: str, rule_id: str, asked: DryRun
) -> str:
    if asked.sql is not None:
        if asked.version is not None:
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "give sql or version, not both")
        return asked.sql
    if asked.version is not None:
        return find_version(rules, caller, tenant, rule_id, asked.version).sql
    return existing(rules, caller, tenant, rule_id).rule.sql


def _other(
    rules: MaterialisedRules, caller: Caller, tenant: str, rule_id: str, version: int | None
) -> Rule | None:
    """Return the rule to compare with: this version, else the one that runs, if one does."""
    if version is not None:
        return find_version(rules, caller, tenant, rule_id, version)
    entry = rules.get(tenant, rule_id)
    return None if entry is None or entry.state != "running" else entry.rule


def to_ms(time: datetime | None) -> int | None:
    if time is None:
        return None
    if time.tzinfo is None:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY, f"{time.isoformat()} has no time zone: end it in Z"
        )
    return round(time.timestamp() * 1000)
