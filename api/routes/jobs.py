"""Jobs: what takes longer than a request. Look at them, end them."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel

from api.dependencies import RunningJobs
from api.jobs import Job
from api.problems import Problem, ProblemDetails
from api.rules.views import JobView, view_job
from mqlake.clock import SystemClock

router = APIRouter(
    tags=["jobs"],
)

JobId = Annotated[str, Path(alias="id", description="identifier of a job")]
_clock = SystemClock()


class JobList(BaseModel):
    items: list[JobView]


@router.get("/jobs")
def get_jobs(
    jobs: RunningJobs,
    rule_id: Annotated[str | None, Query(description="only those of this rule")] = None,
) -> JobList:
    """List jobs, the newest first. Those that have ended are kept for an hour."""
    found = [job for job in jobs.all() if rule_id is None or job.rule_id == rule_id]
    return JobList(items=[_view(job, with_result=False) for job in found])


@router.get("/jobs/{id}", responses={404: {"model": ProblemDetails}})
def get_job(jobs: RunningJobs, job_id: JobId) -> JobView:
    """Show a job: how far it is, and its result once it has one."""
    job = jobs.get(job_id)
    if job is None:
        raise _unknown(job_id)
    return _view(job, with_result=True)


@router.delete(
    "/jobs/{id}", status_code=HTTPStatus.ACCEPTED, responses={404: {"model": ProblemDetails}}
)
def delete_job(jobs: RunningJobs, job_id: JobId) -> JobView:
    """End a job; one that has ended is forgotten. It has ended when its `state` says so."""
    job = jobs.cancel(job_id)
    if job is None:
        raise _unknown(job_id)
    return _view(job, with_result=False)


def _view(job: Job, *, with_result: bool) -> JobView:
    return view_job(job, now_ms=_clock.now_ms(), with_result=with_result)


def _unknown(job_id: str) -> Problem:
    return Problem(
        HTTPStatus.NOT_FOUND, f"there is no job {job_id!r}; jobs are forgotten after an hour"
    )
