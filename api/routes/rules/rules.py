"""Rules: list, make, change, delete; their state and their metrics."""

import re
from contextlib import suppress
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Path, Query, Response

from api.access.callers import Caller
from api.entrance.authentication import CurrentCaller, for_tenants, for_topics, needs
from api.metrics.rules import forget_metrics, reset_metrics
from api.references.materialised import MaterialisedReferences
from api.rules.changes import RuleChanges
from api.rules.checking import check, compiled, warnings
from api.rules.materialised import Entry, MaterialisedRules
from api.rules.report import explain, view_metrics
from api.rules.rights import check_within, is_within, tables_for
from api.rules.views import (
    ChangedRule,
    CheckResult,
    CompiledView,
    Explanation,
    MetricsView,
    NewRule,
    RuleCheck,
    RuleEvent,
    RuleView,
    SourceColumn,
    view_compiled,
    view_problem,
    view_rule,
)
from api.web.pages import DEFAULT_LIMIT, Cursor, Limit, Page, Tenant, read_cursor, to_page
from api.web.problems import Problem, ProblemDetails, RuleProblemDetails
from api.wiring.dependencies import (
    ChangeRules,
    Connect,
    KnownReferences,
    KnownRules,
    KnownTenants,
    Log,
    Metrics,
)
from mqlake.errors import LogError, OperationalError
from mqlake.records.tenants import DEFAULT_TENANT
from rules import columns
from rules.actions import check_actions, describe_arguments
from rules.errors import RuleError
from rules.model import Rule, RuleBody

router = APIRouter(
    tags=["rules"],
    responses={
        422: {"model": RuleProblemDetails},
        503: {"model": ProblemDetails},
    },
)


RuleIdPath = Annotated[str, Path(alias="id", description="identifier of a rule")]
IfMatch = Annotated[
    str | None,
    Header(description="ETag of the version changed; 412 if the rule has changed since"),
]
Wait = Annotated[
    float | None,
    Query(ge=0, le=30, description="maximum seconds to wait for the engine; omitted: 3"),
]
_NOT_FOUND: Final[dict[int | str, dict[str, Any]]] = {404: {"model": ProblemDetails}}
_CHANGE: Final[dict[int | str, dict[str, Any]]] = {
    202: {"model": RuleView, "description": "accepted; the engine has not answered yet"},
    **{code: {"model": ProblemDetails} for code in (404, 409, 412)},
}
_ETAG = re.compile(r'(?:W/)?"([0-9]{1,18})"')


@router.get("/rules", openapi_extra=for_topics())
def get_rules(
    rules: KnownRules,
    caller: CurrentCaller,
    tenant: Tenant = DEFAULT_TENANT,
    enable: Annotated[
        bool | None, Query(description="true: only enabled ones; false: only others")
    ] = None,
    state: Annotated[str | None, Query(description="only in this state")] = None,
    like_id: Annotated[str | None, Query(description="part of the identifier")] = None,
    topic: Annotated[str | None, Query(alias="from", description="exactly this filter")] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[RuleView]:
    """List rules by identifier."""
    (after,) = read_cursor(cursor, 1)
    asked = [
        entry
        for entry in rules.all(tenant)
        if entry.rule.id > after
        and (enable is None or entry.rule.enable == enable)
        and (state is None or entry.state == state)
        and (like_id is None or like_id in entry.rule.id)
        and is_within(caller, tenant, entry.rule, entry.schemas)
    ]
    if topic is None:
        asked = asked[: limit + 1]  # to see the filters a statement is compiled
    views = (view_rule(entry, masked=is_masked(caller)) for entry in asked)
    found = [view for view in views if topic is None or topic in view.topics]
    return to_page(found[: limit + 1], limit, lambda view: (view.id,))


@router.post(
    "/rules", status_code=HTTPStatus.CREATED, responses=_CHANGE, openapi_extra=for_topics()
)
def post_rule(
    response: Response,
    rules: KnownRules,
    changes: ChangeRules,
    references: KnownReferences,
    tenants: KnownTenants,
    caller: CurrentCaller,
    new: NewRule,
    tenant: Tenant = DEFAULT_TENANT,
    wait: Wait = None,
) -> RuleView:
    """Create a rule.

    It is in the log when this answers. The answer waits, 3 seconds by default, until the engine
    has reported its `state`. 202 and `starting` if it has not, for example because Spark is down:
    the rule then starts with Spark, and GET shows when.

    It acts with the current rights of its maker: it fails (`failed`) when these no longer allow its
    actions.
    """
    body = new.body()
    check_for(caller, tenant, rules, references, body)
    rule = changes.create(tenant, new.id, body, caller.name, tenants.limits(tenant))
    return answer_change(response, changes, rule, wait)


@router.post("/rules/validate", openapi_extra={**needs("viewer"), **for_topics()})
def post_validate(
    rules: KnownRules,
    connect: Connect,
    references: KnownReferences,
    caller: CurrentCaller,
    asked: RuleCheck,
    tenant: Tenant = DEFAULT_TENANT,
) -> CheckResult:
    """Validate a rule.

    The answer has errors, warnings and the meaning of its SQL.
    """
    errors = []
    said: list[str] = []
    view: CompiledView | None = None
    try:
        rule = compiled(
            asked.sql, rules.schemas(tenant), tables_for(caller, references.columns(tenant))
        )
    except RuleError as exc:
        errors.append(view_problem(exc))
    else:
        view = CompiledView(**view_compiled(rule))
        said = warnings(rule, asked.actions, connect, tenant)
    try:
        check_actions(asked.actions)
    except RuleError as exc:
        errors.append(view_problem(exc))
    return CheckResult(valid=not errors, errors=errors, warnings=said, compiled=view)


@router.get("/rules/{id:segment}", responses=_NOT_FOUND, openapi_extra=for_topics())
def get_rule(
    response: Response,
    rules: KnownRules,
    caller: CurrentCaller,
    rule_id: RuleIdPath,
    tenant: Tenant = DEFAULT_TENANT,
) -> RuleView:
    """Show a rule.

    The ETag is its version.
    """
    entry = existing(rules, caller, tenant, rule_id)
    _tag(response, entry.rule)
    return view_rule(entry, masked=is_masked(caller))


@router.put("/rules/{id:segment}", responses=_CHANGE, openapi_extra=for_topics())
def put_rule(
    response: Response,
    rules: KnownRules,
    changes: ChangeRules,
    references: KnownReferences,
    tenants: KnownTenants,
    caller: CurrentCaller,
    rule_id: RuleIdPath,
    changed: ChangedRule,
    tenant: Tenant = DEFAULT_TENANT,
    if_match: IfMatch = None,
    wait: Wait = None,
) -> RuleView:
    """Change a rule.

    The content becomes a new version; without a difference nothing happens. `enable` starts and
    stops the rule; any PUT restarts a paused or failed one. It waits for the engine as POST does.
    From then on the rule acts with the caller's rights, even without a difference if its maker was
    another caller.
    """
    body = changed.body()
    existing(rules, caller, tenant, rule_id)
    check_for(caller, tenant, rules, references, body)
    expected = read_etag(if_match)
    rule = changes.replace(
        tenant, rule_id, body, caller.name, expected or changed.version, tenants.limits(tenant)
    )
    response.status_code = HTTPStatus.OK
    return answer_change(response, changes, rule, wait)


@router.delete(
    "/rules/{id:segment}",
    status_code=HTTPStatus.NO_CONTENT,
    responses={code: {"model": ProblemDetails} for code in (404, 412)},
    openapi_extra=for_topics(),
)
def delete_rule(
    changes: ChangeRules,
    rules: KnownRules,
    metrics: Metrics,
    log: Log,
    caller: CurrentCaller,
    rule_id: RuleIdPath,
    tenant: Tenant = DEFAULT_TENANT,
    if_match: IfMatch = None,
) -> None:
    """Delete a rule.

    Its versions are deleted too. Messages that come a moment later are not evaluated.
    """
    existing(rules, caller, tenant, rule_id)
    changes.delete(tenant, rule_id, read_etag(if_match))
    # The rule is gone, also when its counters cannot be deleted.
    with suppress(LogError, OperationalError):
        forget_metrics(log, metrics, tenant, rule_id)


@router.get("/rules/{id:segment}/explain", responses=_NOT_FOUND, openapi_extra=for_topics())
def get_explain(
    rules: KnownRules, caller: CurrentCaller, rule_id: RuleIdPath, tenant: Tenant = DEFAULT_TENANT
) -> Explanation:
    """Explain a rule.

    The answer shows how Spark runs it, and the offsets for which its versions apply.
    """
    entry = existing(rules, caller, tenant, rule_id)
    return explain(entry)


@router.get("/rules/{id:segment}/metrics", responses=_NOT_FOUND, openapi_extra=for_topics())
def get_metrics(
    rules: KnownRules,
    metrics: Metrics,
    caller: CurrentCaller,
    rule_id: RuleIdPath,
    tenant: Tenant = DEFAULT_TENANT,
) -> MetricsView:
    """Show a rule's counters.

    They count from its creation or reset, and are about a second old.
    """
    entry = existing(rules, caller, tenant, rule_id)
    return view_metrics(metrics, entry)


@router.get("/rule_metrics", openapi_extra=for_topics())
def get_all_metrics(
    rules: KnownRules,
    metrics: Metrics,
    caller: CurrentCaller,
    tenant: Tenant = DEFAULT_TENANT,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[MetricsView]:
    """List counters of rules.

    The pages are those of `GET /rules`, by identifier.
    """
    (after,) = read_cursor(cursor, 1)
    asked = [
        entry
        for entry in rules.all(tenant)
        if entry.rule.id > after and is_within(caller, tenant, entry.rule, entry.schemas)
    ]
    found = [view_metrics(metrics, entry) for entry in asked[: limit + 1]]
    return to_page(found, limit, lambda one: (one.id,))


@router.put("/rules/{id:segment}/metrics/reset", responses=_NOT_FOUND, openapi_extra=for_topics())
def put_metrics_reset(
    rules: KnownRules,
    metrics: Metrics,
    log: Log,
    caller: CurrentCaller,
    rule_id: RuleIdPath,
    tenant: Tenant = DEFAULT_TENANT,
) -> MetricsView:
    """Reset a rule's counters."""
    entry = existing(rules, caller, tenant, rule_id)
    reset_metrics(log, metrics, tenant, rule_id)
    return view_metrics(metrics, entry)


@router.get("/rule_events", openapi_extra={**for_tenants(), **for_topics()})
def get_rule_events() -> list[RuleEvent]:
    """List events for rules.

    Each has its columns.
    """
    found = [
        RuleEvent(
            event="<topic filter>",
            title="a message is published",
            columns=_columns(columns.MESSAGE),
            sql_example="SELECT payload.celsius AS celsius, topic FROM 'plant/#' WHERE qos > 0",
        )
    ]
    for name, fields in columns.EVENTS.items():
        found.append(
            RuleEvent(
                event=f"$events/{name}",
                title=name.replace("_", " "),
                columns=_columns(fields),
                sql_example=f"SELECT * FROM '$events/{name}'",  # noqa: S608
            )
        )
    return found


@router.get("/rule_actions", openapi_extra={**for_tenants(), **for_topics()})
def get_rule_actions() -> dict[str, dict[str, Any]]:
    """Show action functions.

    Each has the JSON schema of its `args`.
    """
    return describe_arguments()


def is_masked(caller: Caller) -> bool:
    """Tell whether a caller is shown no secrets of actions, as he may not change rules."""
    return not caller.may("editor")


def existing(rules: MaterialisedRules, caller: Caller, tenant: str, rule_id: str) -> Entry:
    """Return a rule that a caller is shown.

    Raises:
        Problem: There is none, or he is for some topics alone and it is about others.
    """
    entry = rules.get(tenant, rule_id)
    if entry is None or not is_within(caller, tenant, entry.rule, entry.schemas):
        raise Problem(
            HTTPStatus.NOT_FOUND, f"there is no rule {rule_id!r}: bin/mqlake rules list shows all"
        )
    return entry


def check_for(
    caller: Caller,
    tenant: str,
    rules: MaterialisedRules,
    references: MaterialisedReferences,
    body: RuleBody,
) -> None:
    """Accept the content of a rule that can run, and that a caller may give it.

    Raises:
        RuleError: It cannot run.
        NotWithin: It is not within his rights.
    """
    made = check(body, rules.schemas(tenant), tables_for(caller, references.columns(tenant)))
    check_within(caller, tenant, made, body)


def read_etag(if_match: str | None) -> int | None:
    """Return the version that an If-Match names."""
    if if_match is None or if_match.strip() == "*":
        return None
    match = _ETAG.fullmatch(if_match.strip())
    if match is None:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY, f'If-Match is {if_match}, expected "<version>"'
        )
    return int(match[1])


def answer_change(
    response: Response, changes: RuleChanges, rule: Rule, wait: float | None
) -> RuleView:
    """Wait for the engine and answer with the rule."""
    entry = changes.await_answer(rule, wait)
    _tag(response, entry.rule)
    if not entry.is_answered:
        response.status_code = HTTPStatus.ACCEPTED
    return view_rule(entry, masked=False)  # the caller may change rules


def _tag(response: Response, rule: Rule) -> None:
    response.headers["ETag"] = f'"{rule.version}"'


def _columns(found: tuple[columns.RuleColumn, ...]) -> list[SourceColumn]:
    return [
        SourceColumn(name=one.name, type=one.kind, meaning=one.meaning, nullable=one.is_nullable)
        for one in found
    ]
