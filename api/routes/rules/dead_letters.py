"""Dead letters: messages and outputs that rules or actions failed on; run them again."""

import re
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from api.entrance.authentication import CurrentCaller
from api.jobs.pace import DEFAULT_RATE, MAX_RATE
from api.messages import completeness
from api.routes.rules.rules import RuleIdPath, existing
from api.routes.rules.trials import to_ms
from api.rules.checking import compiled
from api.rules.dead_letters import KEY_PARTS, DeadLetterView, Wanted, key_of, list_query, view
from api.rules.rerun import why_not
from api.rules.views import JobView, view_job
from api.web.pages import DEFAULT_LIMIT, Cursor, Limit, Page, Tenant, write_cursor
from api.web.pages import read_cursor as read_parts
from api.web.problems import Problem, ProblemDetails
from api.wiring.dependencies import AllRuns, Completed, Connect, KnownRules
from mqlake.clock import SystemClock
from mqlake.records.tenants import DEFAULT_TENANT
from mqlake.tables.catalogue import DEAD_LETTERS

router = APIRouter(
    tags=["rules"], responses={code: {"model": ProblemDetails} for code in (422, 503)}
)

QUERY_SECONDS = 60.0
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_INT_DIGITS = 9
"""Digits of a partition or an index, which have 32 bits."""
_clock = SystemClock()

_From = Annotated[datetime | None, Query(alias="from", description="given up at or after")]
_To = Annotated[datetime | None, Query(description="given up before")]


class DeadLetterPage(Page[DeadLetterView]):
    complete_until: datetime | None = Field(description=completeness.DESCRIPTION)


class Rerun(BaseModel):
    """The dead letters to rerun."""

    model_config = ConfigDict(
        extra="forbid",
        populate_by_name=True,
        json_schema_extra={
            "examples": [{"from": "2026-01-01T00:00:00Z", "error": "does not decode"}]
        },
    )

    from_: datetime | None = Field(default=None, alias="from", description="given up at or after")
    to: datetime | None = Field(default=None, description="given up before")
    error: str | None = Field(
        default=None, min_length=1, max_length=500, description="part of the error"
    )
    rate: int = Field(
        default=DEFAULT_RATE, ge=1, le=MAX_RATE, description="maximum outputs a second"
    )


@router.get("/dead_letters", responses={200: {"headers": completeness.OPENAPI}})
def get_dead_letters(
    response: Response,
    completed: Completed,
    connect: Connect,
    tenant: Tenant = DEFAULT_TENANT,
    rule: Annotated[str | None, Query(description="only of this rule")] = None,
    stage: Annotated[Literal["evaluate", "action"] | None, Query()] = None,
    error: Annotated[str | None, Query(max_length=500, description="part of the error")] = None,
    open: Annotated[bool | None, Query(description="true: only those not rerun since")] = None,
    begin: _From = None,
    to: _To = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> DeadLetterPage:
    """List dead letters.

    The newest come first; the list is some seconds old: `complete_until` says how far it is. A
    message that the engine evaluates again after a crash is listed once.
    """
    wanted = Wanted(tenant, rule, stage, error, to_ms(begin), to_ms(to), open)
    after = None
    if cursor is not None:
        after = read_parts(cursor, KEY_PARTS)
        numbers = (_WHOLE.fullmatch(part) for part in (after[0], *after[3:6]))
        if not all(numbers) or any(len(after[place]) > _INT_DIGITS for place in (3, 5)):
            raise Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY, "the cursor is not one that a page before gave"
            )
    until = completed.until((DEAD_LETTERS.name,))
    rows = connect.rows(list_query(wanted, after, limit + 1), QUERY_SECONDS, tenant=tenant)
    page = rows[:limit]
    response.headers.update(completeness.headers(until))
    return DeadLetterPage(
        items=[view(row) for row in page],
        next_cursor=write_cursor(*key_of(page[-1])) if len(rows) > limit else None,
        complete_until=until,
    )


@router.post(
    "/rules/{id:segment}/dead_letters/rerun",
    status_code=HTTPStatus.ACCEPTED,
    responses={code: {"model": ProblemDetails} for code in (404, 409, 429)},
)
def post_rerun(
    rules: KnownRules,
    runs: AllRuns,
    caller: CurrentCaller,
    rule_id: RuleIdPath,
    asked: Rerun | None = None,
    tenant: Tenant = DEFAULT_TENANT,
) -> JobView:
    """Rerun dead letters.

    A job evaluates messages on which the rule failed, with the newest version of the rule and of
    its schemas. Outputs go to the rule's actions. A message that no longer fails is done and never
    taken again, so a second rerun does not repeat it. A message that fails stays a dead letter.
    """
    asked = asked or Rerun()
    entry = existing(rules, caller, tenant, rule_id)
    rule = compiled(entry.rule.sql, entry.schemas)
    problem = why_not(rule)
    if problem is not None:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, problem)
    if entry.state != "running":
        raise Problem(HTTPStatus.CONFLICT, f"rule {rule_id!r} is {entry.state}, expected running")
    request = {
        "error": asked.error,
        "from_ms": to_ms(asked.from_),
        "to_ms": to_ms(asked.to),
        "rate": asked.rate,
    }
    job = runs.start("rerun", tenant, rule_id, request, is_only=True)
    return view_job(job, now_ms=_clock.now_ms(), with_result=False)
