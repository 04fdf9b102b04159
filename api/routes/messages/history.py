"""Retention of the history, and the deletion of one client's rows in it."""

from http import HTTPStatus
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from api.entrance.authentication import CurrentCaller, for_tenants, needs
from api.messages.history import REQUESTED, Deletion
from api.rules.views import JobView, view_job
from api.web.pages import Tenant
from api.web.problems import Problem, ProblemDetails
from api.wiring.dependencies import HistoryDeleter, RunningJobs, Settings
from mqlake.clock import SystemClock
from mqlake.errors import SettingsError
from mqlake.records.tenants import DEFAULT_TENANT, TenantName
from mqlake.tables.retention import (
    EVERY,
    MOST_POLICIES,
    KeepingPolicy,
    read_policies,
    write_policies,
)

router = APIRouter(
    tags=["history"], responses={code: {"model": ProblemDetails} for code in (422, 503)}
)

DELETE_HISTORY: Final = "delete_history"
_ADMIN: Final = needs("admin")
_clock = SystemClock()


class RetentionPolicy(BaseModel):
    model_config = ConfigDict(extra="forbid")

    table: str = Field(default="messages", description="messages, events, drops or dead_letters")
    tenant: str = Field(default=EVERY, description="of the rows; * for every tenant")
    topic_filter: str = Field(default="#", description="of the rows' topics; # for all of them")
    keep_days: float = Field(
        gt=0, le=36_500, description="rows are deleted within a day after this age"
    )


class NewPolicy(RetentionPolicy):
    tenant: TenantName | Literal["*"] = Field(
        default=EVERY, description="of the rows; * for every tenant"
    )


class RetentionView(BaseModel):
    policies: list[RetentionPolicy] = Field(
        description="in the order in which they are tried; those of a file may name any tenant"
    )


class RetentionRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    policies: list[NewPolicy] = Field(
        max_length=MOST_POLICIES,
        description="the first that matches a row applies; a row without one is kept",
    )


@router.get("/retention")
def get_retention(settings: Settings) -> RetentionView:
    """Show the retention policies."""
    try:
        return _view(read_policies(settings.data_dir))
    except SettingsError as exc:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(exc)) from exc


@router.put("/retention", openapi_extra=_ADMIN)
def put_retention(settings: Settings, retention: RetentionRequest) -> RetentionView:
    """Replace all retention policies.

    Rows that are too old by the new policies are deleted within six hours.
    """
    policies = tuple(KeepingPolicy(**one.model_dump()) for one in retention.policies)
    try:
        write_policies(settings.data_dir, policies)
    except SettingsError as exc:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(exc)) from exc
    return _view(policies)


@router.delete(
    "/history",
    status_code=HTTPStatus.ACCEPTED,
    responses={429: {"model": ProblemDetails}},
    # It ends time travel of tables that all tenants share.
    openapi_extra={**_ADMIN, **for_tenants(is_open=False)},
)
def delete_history(
    caller: CurrentCaller,
    deleter: HistoryDeleter,
    jobs: RunningJobs,
    client_id: Annotated[
        str, Query(min_length=1, max_length=65_535, description="client whose rows are deleted")
    ],
    tenant: Tenant = DEFAULT_TENANT,
) -> JobView:
    """Delete a client's history.

    A job deletes the rows in the tables messages, events, drops and dead_letters; its result has
    the number for each table. The files are deleted too, so these tables cannot be read as of
    before the deletion. The table `events` records the request, its caller and its result.
    """
    deletion = Deletion(tenant, client_id, caller.name)
    deleter.audit(REQUESTED, deletion)
    job = jobs.start(DELETE_HISTORY, tenant, "", lambda job: deleter.delete(job, deletion))
    return view_job(job, now_ms=_clock.now_ms(), with_result=False)


def _view(policies: tuple[KeepingPolicy, ...]) -> RetentionView:
    return RetentionView(
        policies=[
            RetentionPolicy(
                table=one.table,
                tenant=one.tenant,
                topic_filter=one.topic_filter,
                keep_days=one.keep_days,
            )
            for one in policies
        ]
    )
