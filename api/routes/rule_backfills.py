"""Backfills: outputs of rules for history, and for messages that came during a pause."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from api.authentication import CurrentCaller
from api.dependencies import AllRuns, ChangeRules, KnownRules
from api.pace import DEFAULT_RATE, MAX_RATE
from api.pages import Tenant
from api.problems import Problem, ProblemDetails, RuleProblemDetails
from api.routes.rule_trials import to_ms
from api.routes.rules import IfMatch, RuleIdPath, Wait, answer_change, existing, read_etag
from api.rules.backfill import BackfillError
from api.rules.changes import body_of
from api.rules.views import JobView, RuleView, view_job
from api.rules.work import check_missed
from mqlake.clock import SystemClock
from mqlake.tenants import DEFAULT_TENANT

router = APIRouter(
    tags=["rules"],
    responses={
        422: {"model": RuleProblemDetails},
        503: {"model": ProblemDetails},
    },
)

Rate = Annotated[int, Field(ge=1, le=MAX_RATE, description="outputs a second, at most")]
_clock = SystemClock()


class Backfill(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        populate_by_name=True,
        json_schema_extra={"examples": [{"from": "2026-01-01T00:00:00Z", "rate": 500}]},
    )

    from_: datetime | None = Field(
        default=None, alias="from", description="only what was received since; null: everything"
    )
    missed: bool = Field(
        default=False,
        description="only what the rule has missed: from where it was paused or stopped to where "
        "its newest version began; 409 when it had not stopped before that",
    )
    rate: Rate = DEFAULT_RATE


class Resumption(BaseModel):
    """Resumption of a paused rule."""

    model_config = ConfigDict(
        extra="forbid", populate_by_name=True, json_schema_extra={"examples": [{"from": "pause"}]}
    )

    from_: Literal["now", "pause"] = Field(
        default="now",
        alias="from",
        description="now: with what comes from now on; pause: also with what came since it was "
        "paused, by a backfill of that alone",
    )
    rate: Rate = DEFAULT_RATE


class Resumed(BaseModel):
    """A rule that goes on, and the job that makes up for messages it has missed."""

    rule: RuleView
    job: JobView | None = Field(
        description="null: none was asked for, or the rule does not run yet; then "
        "POST /rules/{id}/backfill with `missed` starts it later"
    )


@router.post(
    "/rules/{id}/backfill",
    status_code=HTTPStatus.ACCEPTED,
    responses={code: {"model": ProblemDetails} for code in (404, 409, 429)},
)
def post_backfill(
    rules: KnownRules,
    runs: AllRuns,
    caller: CurrentCaller,
    rule_id: RuleIdPath,
    asked: Backfill | None = None,
    tenant: Annotated[str, Query(min_length=1)] = DEFAULT_TENANT,
) -> JobView:
    """Give the actions of a running rule its outputs for history, as a job.

    That is of every stored message before its newest version came into force: live evaluation
    has each one from there on, so that none is left out and none taken twice. The outputs are in
    the order of the log; those whose evaluation fails become dead letters. A second backfill of
    the same rule gives its outputs again, with other identifiers.
    """
    asked = asked or Backfill()
    entry = existing(rules, caller, tenant, rule_id)
    request = {
        "version": entry.rule.version,
        "from_ms": to_ms(asked.from_),
        "missed": asked.missed,
        "rate": asked.rate,
    }
    job = runs.start("backfill", tenant, rule_id, request, is_only=True)
    return view_job(job, now_ms=_clock.now_ms(), with_result=False)


@router.post(
    "/rules/{id}/resume",
    responses={
        202: {"model": Resumed, "description": "taken; the engine has not answered yet"},
        **{code: {"model": ProblemDetails} for code in (404, 409, 412, 429)},
    },
)
def post_resume_rule(
    response: Response,
    rules: KnownRules,
    changes: ChangeRules,
    runs: AllRuns,
    caller: CurrentCaller,
    rule_id: RuleIdPath,
    asked: Resumption | None = None,
    tenant: Tenant = DEFAULT_TENANT,
    if_match: IfMatch = None,
    wait: Wait = None,
) -> Resumed:
    """Let a paused or failed rule go on as it is, as a new version: from now on, or from there.

    From where it paused means that a backfill gives its actions the rule's outputs for the messages
    between there and its new version, at most `rate` outputs a second; live evaluation has the
    others at once. None is left out and none taken twice.
    """
    asked = asked or Resumption()
    entry = existing(rules, caller, tenant, rule_id)
    if entry.state not in ("paused", "failed"):
        raise Problem(
            HTTPStatus.CONFLICT, f"rule {rule_id!r} is {entry.state}, expected paused or failed"
        )
    if asked.from_ == "pause":
        check_missed(entry)
    expected = read_etag(if_match)
    rule = changes.replace(
        *(tenant, rule_id, body_of(entry.rule), caller.name), expected or entry.rule.version
    )
    view = answer_change(response, changes, rule, wait)
    entry = existing(rules, caller, tenant, rule_id)
    if asked.from_ == "now" or (view.version, view.state) != (entry.rule.version, "running"):
        return Resumed(rule=view, job=None)
    order = {"version": rule.version, "from_ms": None, "missed": True, "rate": asked.rate}
    try:
        job = runs.start("backfill", tenant, rule_id, order)
    except BackfillError:  # it had stopped before a record of its source was written
        return Resumed(rule=view, job=None)
    return Resumed(rule=view, job=view_job(job, now_ms=_clock.now_ms(), with_result=False))
