"""Federation of this site with others: its links, and what they carry."""

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request

from api.dependencies import unavailable
from api.federation import Federation, FederationLink
from api.problems import Problem, ProblemDetails

router = APIRouter(tags=["federation"])

_ANSWERS: dict[int | str, dict[str, Any]] = {code: {"model": ProblemDetails} for code in (404, 503)}


@router.get("/federation", responses=_ANSWERS)
def get_federation(request: Request) -> Federation:
    """Show which sites this one is federated with, and how far they have its log."""
    link: FederationLink = request.app.state.federation
    if not link.is_there:
        raise Problem(
            HTTPStatus.NOT_FOUND,
            "this site is not federated: start the system with `mqlake up --federation FILE`",
        )
    with unavailable():
        return link.read()
