"""Backfills: outputs of rules for history, and for messages that came during a pause."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from api.entrance.authentication import CurrentCaller
from api.jobs.pace import DEFAULT_RATE, MAX_RATE
from api.routes.rules.rules import IfMatch, RuleIdPath, Wait, answer_change, existing, read_etag
from api.routes.rules.trials import to_ms
from api.rules.backfill import BackfillError
from api.rules.changes import body_of
from api.rules.views import JobView, RuleView, view_job
from api.rules.work import check_missed
from api.web.pages import Tenant
from api.web.problems import Problem, ProblemDetails, RuleProblemDetails
from api.wiring.dependencies import AllRuns, ChangeRules, KnownRules
from mqlake.clock import SystemClock
from mqlake.records.tenants import DEFAULT_TENANT

router = APIRouter(
    tags=["rules"],
    responses={
        422: {"model": RuleProblemDetails},
        503: {"model": ProblemDetails},
    },
)

Rate = Annotated[int, Field(ge=1, le=MAX_RATE, description="maximum outputs a second")]
_clock = SystemClock()


class Backfill(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        populate_by_name=True,
        json_schema_extra={"examples": [{"from": "2026-01-01T00:00:00Z", "rate": 500}]},
    )

    from_: datetime | None = Field(
        default=None, alias="from", description="only messages received at or after; null: all"
    )
    missed: bool = Field(
        default=False,
        description="only messages that the rule missed: from its pause or stop to its newest "
        "version; 409 if it had not stopped before that",
    )
    rate: Rate = DEFAULT_RATE


class Resumption(BaseModel):
    """The way in which a paused rule resumes."""

    model_config = ConfigDict(
        extra="forbid", populate_by_name=True, json_schema_extra={"examples": [{"from": "pause"}]}
    )

    from_: Literal["now", "pause"] = Field(
        default="now",
        alias="from",
        description="now: with messages from now on; pause: also those since the pause, by a "
        "backfill of these alone",
    )
    rate: Rate = DEFAULT_RATE


class Resumed(BaseModel):
    """A resumed rule, and the job that backfills the messages it missed."""

    rule: RuleView
    job: JobView | None = Field(
        description="null: none requested, or the rule does not run yet; POST /rules/{id}/backfill "
        "with `missed` then starts it later"
    )


@router.post(
    "/rules/{id:segment}/backfill",
    status_code=HTTPStatus.ACCEPTED,
    responses={code: {"model": ProblemDetails} for code in (404, 409, 429)},
)
def post_backfill(
    rules: KnownRules,
    runs: AllRuns,
    caller: CurrentCaller,
    rule_id: RuleIdPath,
    asked: Backfill | None = None,
    tenant: Tenant = DEFAULT_TENANT,
) -> JobView:
    """Backfill a rule.

    A job gives the actions of a running rule its outputs for every stored message before its newest
    version took effect. Live evaluation has all later messages, so none is skipped or taken twice.
    Outputs are in the order of the log; messages that fail become dead letters. A second backfill
    of the same rule gives its outputs again, with other identifiers.
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
    "/rules/{id:segment}/resume",
    responses={
        202: {"model": Resumed, "description": "accepted; the engine has not answered yet"},
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
    """Resume a rule.

    A paused or failed rule continues unchanged, as a new version: from now on, or from the pause.
    In the second case a backfill gives its actions the outputs for the messages between the pause
    and the new version, at most `rate` outputs a second; live evaluation has later messages at
    once. None is skipped or taken twice.
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
        tenant, rule_id, body_of(entry.rule), caller.name, expected or entry.rule.version
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
