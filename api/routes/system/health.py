"""Liveness and readiness: for load balancers and scripts, so without a token."""

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from api.web.problems import ProblemDetails, problem_response
from api.wiring.dependencies import Settings
from mqlake.errors import OperationalError
from mqlake.processes.status import read_state, report

router = APIRouter(tags=["health"])


class Live(BaseModel):
    live: bool


class ReadyView(BaseModel):
    ready: bool


@router.get("/live")
def get_live() -> Live:
    """Check the API.

    It answers as long as the API itself works.
    """
    return Live(live=True)


@router.get("/ready", response_model=ReadyView, responses={503: {"model": ProblemDetails}})
def get_ready(settings: Settings) -> ReadyView | JSONResponse:
    """Check the system.

    It answers 200 if every part is healthy, otherwise 503 with those that are not.
    """
    try:
        system = report(read_state(settings.data_dir))
    except OperationalError as exc:
        return problem_response(HTTPStatus.SERVICE_UNAVAILABLE, str(exc), unhealthy=[])
    if system["healthy"]:
        return ReadyView(ready=True)
    unhealthy: list[dict[str, Any]] = [
        {"name": process["name"], "detail": process["detail"]}
        for process in system["processes"]
        if not process["healthy"]
    ]
    names = ", ".join(part["name"] for part in unhealthy)
    detail = f"not healthy: {names}" if names else f"the system is {system['phase']}"
    return problem_response(HTTPStatus.SERVICE_UNAVAILABLE, detail, unhealthy=unhealthy)
