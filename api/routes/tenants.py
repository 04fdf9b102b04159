"""Tenants: whose clients gateways let in."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Literal

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from api.authentication import CurrentCaller, for_tenants, needs
from api.dependencies import (
    AllRuns,
    Cache,
    ChangeTenants,
    KnownReferences,
    KnownRules,
    KnownTenants,
    RunningJobs,
)
from api.jobs import Jobs, to_time
from api.pages import DEFAULT_LIMIT, Cursor, Limit, Page, read_cursor, to_page
from api.problems import Problem, ProblemDetails
from api.rules.views import JobView, view_job
from api.tenant_deletion import DELETE_TENANT, is_being_deleted
from mqlake.tenants import (
    DEFAULT_TENANT,
    NO_LIMITS,
    TENANT_PATTERN,
    KeptTenant,
    Tenant,
    TenantLimits,
)

router = APIRouter(tags=["tenants"], responses={503: {"model": ProblemDetails}})


Name = Annotated[str, Path(pattern=TENANT_PATTERN)]


class TenantView(BaseModel):
    name: str
    state: Literal["active", "suspended"] | None = Field(
        description="null: it was not created, and only gateways whose own tenant it is let its "
        "clients in"
    )
    description: str
    limits: TenantLimits
    created_at: datetime | None
    changed_at: datetime | None
    changed_by: str | None
    sessions: int = Field(description="that outlive their connection, or have a will")
    rules: int


@router.get("/tenants", openapi_extra=for_tenants())
def get_tenants(
    caller: CurrentCaller,
    cache: Cache,
    rules: KnownRules,
    tenants: KnownTenants,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[TenantView]:
    """List by name tenants that were created, or have sessions or rules, and `default`.

    A caller for some tenants is shown these.
    """
    (after,) = read_cursor(cursor, 1)
    sessions = cache.tenants()
    kept = tenants.all()
    known = {DEFAULT_TENANT, *sessions, *rules.tenants(), *kept, *(caller.tenants or ())}
    names = sorted(filter(caller.is_of, known))
    found = [
        _view(name, kept.get(name), sessions.get(name, 0), len(rules.all(name)))
        for name in [one for one in names if one > after][: limit + 1]
    ]
    return to_page(found, limit, lambda one: (one.name,))


@router.put(
    "/tenants/{name}",
    openapi_extra=needs("admin"),
    responses={409: {"model": ProblemDetails}, 422: {"model": ProblemDetails}},
)
def put_tenant(
    caller: CurrentCaller,
    cache: Cache,
    rules: KnownRules,
    changes: ChangeTenants,
    jobs: RunningJobs,
    name: Name,
    wanted: Tenant,
) -> TenantView:
    """Create a tenant, suspend or resume it, or give it other limits.

    Clients of a suspended one are cut off by all gateways, and none is let in.
    """
    _refuse_going(jobs, name)
    sessions = cache.tenants()
    kept = changes.put(name, wanted, caller.name)
    return _view(name, kept, sessions.get(name, 0), len(rules.all(name)))


@router.delete(
    "/tenants/{name}",
    status_code=HTTPStatus.ACCEPTED,
    openapi_extra=needs("admin"),
    responses={code: {"model": ProblemDetails} for code in (404, 409)},
)
def delete_tenant(
    runs: AllRuns,
    caller: CurrentCaller,
    _cache: Cache,
    _rules: KnownRules,
    _references: KnownReferences,
    tenants: KnownTenants,
    name: Name,
) -> JobView:
    """Delete a tenant with all that it has: a job, which can be resumed.

    Its clients are cut off, its sessions end, and rules, schemas, reference tables, retained
    messages, keys, accounts and rows of tables go; files of tables too, and with them time travel
    of all tenants to before. Records in the log stay as long as the log keeps them.
    """
    if name == DEFAULT_TENANT:
        raise Problem(HTTPStatus.CONFLICT, f"the tenant {name!r} is always there")
    if tenants.get(name) is None:
        raise Problem(HTTPStatus.NOT_FOUND, f"no tenant {name!r} was created")
    _refuse_going(runs.jobs, name)
    job = runs.start(DELETE_TENANT, name, "", {"by": caller.name})
    return view_job(job, now_ms=job.created_at_ms, with_result=False)


def _refuse_going(jobs: Jobs, name: str) -> None:
    if is_being_deleted(jobs, name):
        raise Problem(HTTPStatus.CONFLICT, f"the tenant {name!r} is being deleted")


def _view(name: str, kept: KeptTenant | None, sessions: int, rules: int) -> TenantView:
    return TenantView(
        name=name,
        state=None if kept is None else kept.state,
        description="" if kept is None else kept.description,
        limits=NO_LIMITS if kept is None else kept.limits,
        created_at=None if kept is None else to_time(kept.created_at),
        changed_at=None if kept is None else to_time(kept.at),
        changed_by=None if kept is None else kept.by,
        sessions=sessions,
        rules=rules,
    )
