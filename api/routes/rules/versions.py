"""The versions of a rule: list, compare, go back."""

from difflib import unified_diff
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Response

from api.access.callers import Caller
from api.entrance.authentication import CurrentCaller, for_topics
from api.routes.rules.rules import (
    IfMatch,
    RuleIdPath,
    Wait,
    answer_change,
    check_for,
    existing,
    is_masked,
    read_etag,
)
from api.rules.changes import body_of
from api.rules.materialised import MaterialisedRules
from api.rules.rights import is_within
from api.rules.views import Difference, RuleView, VersionView, masked_body, view_version
from api.web.pages import Page, Tenant
from api.web.problems import Problem, ProblemDetails, RuleProblemDetails
from api.wiring.dependencies import ChangeRules, KnownReferences, KnownRules, KnownTenants
from mqlake.records.tenants import DEFAULT_TENANT
from rules.documents import write_document
from rules.model import Rule

router = APIRouter(
    tags=["rules"],
    responses={
        **{code: {"model": ProblemDetails} for code in (404, 503)},
        422: {"model": RuleProblemDetails},
    },
)

_CHANGE: Final[dict[int | str, dict[str, Any]]] = {
    202: {"model": RuleView, "description": "accepted; the engine has not answered yet"},
    412: {"model": ProblemDetails},
}
Number = Annotated[int, Path(ge=1, description="number of a version")]


@router.get("/rules/{id:segment}/versions", openapi_extra=for_topics())
def get_versions(
    rules: KnownRules, caller: CurrentCaller, rule_id: RuleIdPath, tenant: Tenant = DEFAULT_TENANT
) -> Page[VersionView]:
    """List versions of a rule.

    The newest come first; the last 100 are kept.
    """
    existing(rules, caller, tenant, rule_id)
    schemas = rules.schemas(tenant)
    versions = [
        one for one in rules.versions(tenant, rule_id) if is_within(caller, tenant, one, schemas)
    ]
    views = [view_version(one, masked=is_masked(caller)) for one in versions]
    return Page(items=views, next_cursor=None)


@router.get("/rules/{id:segment}/versions/{version:segment}", openapi_extra=for_topics())
def get_version(
    rules: KnownRules,
    caller: CurrentCaller,
    rule_id: RuleIdPath,
    version: Number,
    tenant: Tenant = DEFAULT_TENANT,
) -> VersionView:
    """Show a version of a rule."""
    found = find_version(rules, caller, tenant, rule_id, version)
    return view_version(found, masked=is_masked(caller))


@router.get(
    "/rules/{id:segment}/versions/{version:segment}/diff/{other:segment}",
    openapi_extra=for_topics(),
)
def get_difference(
    rules: KnownRules,
    caller: CurrentCaller,
    rule_id: RuleIdPath,
    version: Number,
    other: Number,
    tenant: Tenant = DEFAULT_TENANT,
) -> Difference:
    """Compare two versions of a rule."""
    texts = []
    for number in (version, other):
        body = body_of(find_version(rules, caller, tenant, rule_id, number))
        shown = masked_body(body) if is_masked(caller) else body
        texts.append(write_document(rule_id, shown).splitlines(keepends=True))
    old, new = texts
    names = f"{rule_id} version {version}", f"{rule_id} version {other}"
    lines = unified_diff(old, new, *names)
    return Difference(diff="".join(lines))


@router.post(
    "/rules/{id:segment}/versions/{version:segment}/rollback",
    responses=_CHANGE,
    openapi_extra=for_topics(),
)
def post_rollback(
    response: Response,
    rules: KnownRules,
    changes: ChangeRules,
    references: KnownReferences,
    tenants: KnownTenants,
    caller: CurrentCaller,
    rule_id: RuleIdPath,
    version: Number,
    tenant: Tenant = DEFAULT_TENANT,
    if_match: IfMatch = None,
    wait: Wait = None,
) -> RuleView:
    """Roll back a rule.

    The content of an earlier version becomes a new version.
    """
    body = body_of(find_version(rules, caller, tenant, rule_id, version))
    check_for(caller, tenant, rules, references, body)
    rule = changes.replace(
        tenant, rule_id, body, caller.name, read_etag(if_match), tenants.limits(tenant)
    )
    response.status_code = HTTPStatus.OK
    return answer_change(response, changes, rule, wait)


def find_version(
    rules: MaterialisedRules, caller: Caller, tenant: str, rule_id: str, version: int
) -> Rule:
    """Return a version of a rule that a caller is shown.

    Raises:
        Problem: There is no such rule, or no such version.
    """
    existing(rules, caller, tenant, rule_id)
    versions = rules.versions(tenant, rule_id)
    found = next((one for one in versions if one.version == version), None)
    if found is None or not is_within(caller, tenant, found, rules.schemas(tenant)):
        kept = f"{versions[-1].version} to {versions[0].version}" if versions else "none"
        raise Problem(
            HTTPStatus.NOT_FOUND, f"rule {rule_id!r} has no version {version}; kept: {kept}"
        )
    return found
