"""Federation of this site with others: its links, and their traffic."""

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter

from api.federation import Federation
from api.web.problems import Problem, ProblemDetails
from api.wiring.dependencies import Federated

router = APIRouter(tags=["federation"])

_ANSWERS: dict[int | str, dict[str, Any]] = {code: {"model": ProblemDetails} for code in (404, 503)}


@router.get("/federation", responses=_ANSWERS)
def get_federation(link: Federated) -> Federation:
    """Show the federation.

    The answer has the linked sites, and how much of this site's log they have.
    """
    if not link.is_there:
        raise Problem(
            HTTPStatus.NOT_FOUND,
            "this site is not federated: start the system with `mqlake up --federation FILE`",
        )
    return link.read()
