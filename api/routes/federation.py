"""Federation of this site with others: its links, and what they carry."""

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from api.problems import Problem, ProblemDetails
from mqlake.heartbeat import read_heartbeat

router = APIRouter(tags=["federation"])

_ANSWERS: dict[int | str, dict[str, Any]] = {code: {"model": ProblemDetails} for code in (404, 503)}


class LinkCounters(BaseModel):
    sent: int = Field(description="messages, those that were sent again included")
    expired: int = Field(description="messages that expired before it got them")
    over_hop_limit: int
    too_large: int = Field(description="larger than it takes; it never gets them")
    malformed: int = Field(description="records whose envelope or properties cannot be read")


class Link(BaseModel):
    site: int
    uri: str = Field(description="of its federator; empty: it connects to this site")
    there: bool = Field(description="it gets what it wants")
    reason: str = Field(description="why not; empty: it is there")
    waiting: int = Field(description="messages that it has not acknowledged")
    behind: int = Field(description="records of this site's log that it may not have")
    gone: int = Field(description="times that the log had no more what it was to get next")
    counters: LinkCounters


class SiteCounters(BaseModel):
    received: int = Field(description="messages of neighbours, copies included")
    appended: int = Field(description="of these, new ones")
    duplicates: int
    echoes: int = Field(description="its own, come back")
    refused: int = Field(description="of topics that their link may not bring")
    malformed: int
    strangers: int = Field(description="connections of whom nobody knows here")


class Federation(BaseModel):
    healthy: bool
    detail: str
    site: int
    epoch: int = Field(description="another one when the offsets of the log have begun anew")
    links: list[Link]
    streams: int = Field(description="partitions of other sites of which messages came")
    gaps: int = Field(description="of these, ranges that may still come on another path")
    counters: SiteCounters


@router.get("/federation", responses=_ANSWERS)
def get_federation(request: Request) -> Federation:
    """Show which sites this one is federated with, and how far they have its log."""
    beat = read_heartbeat(request.app.state.federation_heartbeat)
    if beat is None:
        raise Problem(
            HTTPStatus.NOT_FOUND,
            "this site is not federated: start the system with `mqlake up --federation FILE`",
        )
    if not beat.is_fresh() or "links" not in beat.figures:
        raise Problem(
            HTTPStatus.SERVICE_UNAVAILABLE, f"the federator says nothing; last: {beat.detail}"
        )
    return Federation.model_validate(
        {"healthy": beat.healthy, "detail": beat.detail, **beat.figures}
    )
