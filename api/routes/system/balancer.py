"""The load balancer: its nodes and proxies, and requests of an administrator to it."""

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from api.clients.balancing import Balancer, BalancerLink
from api.clients.control import DRAIN_PER_SECOND, MAX_DRAIN_PER_SECOND
from api.entrance.authentication import needs
from api.web.problems import Problem, ProblemDetails
from api.wiring.dependencies import Balancing

router = APIRouter(tags=["balancer"])

_ANSWERS: dict[int | str, dict[str, Any]] = {code: {"model": ProblemDetails} for code in (404, 503)}


class NodeDrain(BaseModel):
    model_config = {"extra": "forbid"}

    connections_per_second: float = Field(default=DRAIN_PER_SECOND, gt=0, le=MAX_DRAIN_PER_SECOND)


class NodeAsked(BaseModel):
    node: str
    action: str = Field(description="`drain` or `serve`; `GET /balancer` shows the progress")


def _link(link: Balancing) -> BalancerLink:
    if not link.is_there:
        raise Problem(
            HTTPStatus.NOT_FOUND,
            "no balancer runs here: start the system with `mqlake up --balanced`",
        )
    return link


Link = Annotated[BalancerLink, Depends(_link)]


@router.get("/balancer", responses=_ANSWERS)
def get_balancer(link: Link) -> Balancer:
    """Show the balancer.

    The answer has nodes with weight and health factors, proxies, and the snapshot that each runs.
    """
    return link.read()


@router.post(
    "/balancer/nodes/{name:segment}/drain",
    status_code=HTTPStatus.ACCEPTED,
    openapi_extra=needs("admin"),
    responses=_ANSWERS | {422: {"model": ProblemDetails}},
)
def post_node_drain(link: Link, name: str, drain: NodeDrain | None = None) -> NodeAsked:
    """Drain a node.

    It gets no new clients; once all proxies know, its clients are moved.
    """
    _check_name(link, name)
    link.drain(name, (drain or NodeDrain()).connections_per_second)
    return NodeAsked(node=name, action="drain")


@router.delete(
    "/balancer/nodes/{name:segment}/drain",
    status_code=HTTPStatus.ACCEPTED,
    openapi_extra=needs("admin"),
    responses=_ANSWERS,
)
def delete_node_drain(link: Link, name: str) -> NodeAsked:
    """End the drain of a node."""
    _check_name(link, name)
    link.undrain(name)
    return NodeAsked(node=name, action="serve")


def _check_name(link: BalancerLink, name: str) -> None:
    names = [node.name for node in link.read().nodes]
    if name not in names:
        known = f"; there are: {', '.join(names)}" if names else ""
        raise Problem(HTTPStatus.NOT_FOUND, f"no node {name!r}{known}")
