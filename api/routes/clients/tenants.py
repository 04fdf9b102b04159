"""Tenants: whose clients gateways let in."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Literal

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from api.entrance.authentication import CurrentCaller, for_tenants, needs
from api.jobs.jobs import Jobs, to_time
from api.rules.views import JobView, view_job
from api.web.pages import DEFAULT_LIMIT, Cursor, Limit, Page, read_cursor, to_page
from api.web.problems import Problem, ProblemDetails
from api.wiring.dependencies import (
    AllRuns,
    Cache,
    ChangeTenants,
    KnownReferences,
    KnownRules,
    KnownTenants,
    RunningJobs,
)
from api.wiring.tenant_deletion import DELETE_TENANT, is_being_deleted
from mqlake.records.tenants import (
    DEFAULT_TENANT,
    NO_LIMITS,
    KeptTenant,
    Tenant,
    TenantLimits,
    TenantName,
)

router = APIRouter(tags=["tenants"], responses={503: {"model": ProblemDetails}})


Name = Annotated[TenantName, Path(description="name of the tenant")]


class TenantView(BaseModel):
    name: str
    state: Literal["active", "suspended"] | None = Field(
        description="null: not created; only gateways with it as their own tenant admit its clients"
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
    """List tenants by name.

    They were created or have sessions or rules; `default` is always listed. A caller limited to
    tenants sees only these.
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
    "/tenants/{name:segment}",
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
    """Create or change a tenant.

    Clients of a suspended tenant are disconnected by all gateways, and none is admitted.
    """
    _refuse_going(jobs, name)
    sessions = cache.tenants()
    kept = changes.put(name, wanted, caller.name)
    return _view(name, kept, sessions.get(name, 0), len(rules.all(name)))


@router.delete(
    "/tenants/{name:segment}",
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
    """Delete a tenant.

    A job, which can be resumed, deletes everything of the tenant: its clients are disconnected, its
    sessions end, and rules, schemas, reference tables, retained messages, keys, accounts and rows
    of tables are deleted. Files of tables are deleted too, so no tenant can read tables as of
    before the deletion. Records in the log stay as long as the log keeps them.
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
