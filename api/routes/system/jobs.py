"""Jobs, which take longer than a request: look at them, end them."""

from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Path, Query

from api.access.callers import Caller
from api.entrance.authentication import CurrentCaller, for_tenants, for_topics
from api.jobs.jobs import Job
from api.routes.messages.history import DELETE_HISTORY
from api.rules.views import JobView, view_job
from api.web.pages import DEFAULT_LIMIT, Cursor, Limit, Page, read_cursor, write_cursor
from api.web.problems import Problem, ProblemDetails
from api.wiring.dependencies import RunningJobs
from api.wiring.tenant_deletion import DELETE_TENANT
from mqlake.clock import SystemClock

router = APIRouter(
    tags=["jobs"],
)

_OWN: Final = {**for_topics(), **for_tenants()}
_ADMINS: Final = frozenset({DELETE_HISTORY, DELETE_TENANT})
"""Kinds of jobs that only an administrator of all tenants begins, and so ends."""

JobId = Annotated[str, Path(alias="id", description="identifier of a job")]
_clock = SystemClock()


@router.get("/jobs", openapi_extra=_OWN)
def get_jobs(
    jobs: RunningJobs,
    caller: CurrentCaller,
    rule_id: Annotated[str | None, Query(description="only those of this rule")] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[JobView]:
    """List jobs.

    The newest come first; ended ones are kept for a day. A caller limited to topics sees, and may
    end, only jobs that it started; a caller limited to tenants, jobs of these.
    """
    made_at, last_id = read_cursor(cursor, 2)
    found = [
        job
        for job in jobs.all()
        if is_shown(job, caller)
        and (rule_id is None or job.rule_id == rule_id)
        and (cursor is None or _place(job) < (made_at, last_id))
    ]
    found.sort(key=_place, reverse=True)
    shown = found[:limit]
    more = write_cursor(*_place(shown[-1])) if len(found) > limit else None
    return Page(items=[_view(job, with_result=False) for job in shown], next_cursor=more)


@router.get(
    "/jobs/{id:segment}",
    responses={404: {"model": ProblemDetails}},
    openapi_extra=_OWN,
)
def get_job(jobs: RunningJobs, caller: CurrentCaller, job_id: JobId) -> JobView:
    """Show a job.

    The answer has its progress, and its result when it has succeeded.
    """
    job = jobs.get(job_id)
    if job is None or not is_shown(job, caller):
        raise unknown_job(job_id)
    return _view(job, with_result=True)


@router.delete(
    "/jobs/{id:segment}",
    status_code=HTTPStatus.ACCEPTED,
    responses={code: {"model": ProblemDetails} for code in (403, 404, 409)},
    openapi_extra=_OWN,
)
def delete_job(jobs: RunningJobs, caller: CurrentCaller, job_id: JobId) -> JobView:
    """End a job.

    Its `state` shows when it has ended. A job that has already ended is removed. Jobs that only an
    administrator may start, only an administrator may end.
    """
    known = jobs.get(job_id)
    if known is not None and not is_shown(known, caller):
        raise unknown_job(job_id)
    if known is not None:
        check_kind(known, caller)
    job = jobs.cancel(job_id)
    if job is None:
        raise unknown_job(job_id)
    return _view(job, with_result=False)


def is_shown(job: Job, caller: Caller) -> bool:
    """Tell whether a caller may see a job, and so end it or go on with it."""
    begun_by = (job.request or {}).get("username")
    return caller.is_of(job.tenant) and (caller.topic_filters is None or begun_by == caller.name)


def check_kind(job: Job, caller: Caller) -> None:
    """Let a caller end a job, or go on with it.

    Raises:
        Problem: It is an administrator's.
    """
    if job.kind in _ADMINS and not (caller.may("admin") and caller.tenants is None):
        raise Problem(
            HTTPStatus.FORBIDDEN,
            f"a job of the kind {job.kind} is for the role admin, of all tenants; "
            f"{caller.name} is {caller.role}",
        )


def _view(job: Job, *, with_result: bool) -> JobView:
    return view_job(job, now_ms=_clock.now_ms(), with_result=with_result)


def _place(job: Job) -> tuple[str, str]:
    """Return the place of a job in the list; as texts, since a cursor holds no others."""
    return f"{job.created_at_ms:015}", job.id


def unknown_job(job_id: str) -> Problem:
    return Problem(
        HTTPStatus.NOT_FOUND,
        f"there is no job {job_id!r}; jobs are forgotten a day after their end",
    )
