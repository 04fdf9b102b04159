"""Gateways, and requests of an administrator to one."""

from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from api.clients.control import DRAIN_PER_SECOND, MAX_DRAIN_PER_SECOND, ask_gateway
from api.clients.presence import Gateways, Presence
from api.entrance.authentication import needs
from api.web.pages import DEFAULT_LIMIT, Cursor, Limit, Page, read_cursor, to_page
from api.web.problems import Problem, ProblemDetails
from api.wiring.dependencies import Heard, Log

router = APIRouter(tags=["gateways"])

_ASKING: dict[int | str, dict[str, Any]] = {
    code: {"model": ProblemDetails} for code in (404, 422, 503)
}


class GatewayView(BaseModel):
    name: str
    site: str
    alive: bool = Field(description="heard from within the last 3 seconds")
    state: str = Field(
        description="serving, draining (clients are leaving), drained or retiring (a command uses "
        "its name, as it is gone), as last reported"
    )
    clients: int = Field(description="number connected")
    listeners: list[str]
    last_seen: datetime = Field(description="time of its last heartbeat, by its own clock")
    clock_ahead_seconds: float | None = Field(
        description="lead of its clock over the log's; negative: behind; null: not known"
    )
    rights_version: int = Field(description="of its rights; 0: those of its rights_file, if any")
    incarnation: str = Field(description="changes with each start")


class ShardView(BaseModel):
    shard: int
    gateway: str | None = Field(description="owner; null: none at the moment")
    addresses: dict[str, str] = Field(
        description="host and port for clients of that gateway, by kind of listener"
    )


class Placement(BaseModel):
    shards: int = Field(
        description="their number: a client's is the CRC-32 of <tenant>/<client_id>, unsigned, "
        "modulo this; 0: not known yet"
    )
    items: list[ShardView]


class GatewayAsked(BaseModel):
    gateway: str
    action: str = Field(description="the action requested; the gateway's log has its result")


class DrainRequest(BaseModel):
    model_config = {"extra": "forbid"}

    connections_per_second: float = Field(default=DRAIN_PER_SECOND, gt=0, le=MAX_DRAIN_PER_SECOND)
    server_reference: str | None = Field(
        default=None,
        max_length=1024,
        description="the server that 5.0 clients are told to use, for example "
        "`mqtt.example.org:1883`; null: the gateway's setting server_reference, if any",
    )
    moved: bool = Field(
        default=False,
        description="this gateway will not return: 5.0 clients get 0x9D (server moved) instead of "
        "0x9C (use another server)",
    )


@router.get("/gateways")
def get_gateways(
    gateways: Heard, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[GatewayView]:
    """List gateways by name.

    Gateways that were stopped cleanly are not listed.
    """
    (after,) = read_cursor(cursor, 1)
    found = [_gateway(one) for one in gateways.all() if one.name > after]
    return to_page(found[: limit + 1], limit, lambda one: (one.name,))


@router.get("/placement")
def get_placement(gateways: Heard) -> Placement:
    """Show the owner of each shard.

    The live gateways report it. A client that connects to the owner of its shard is served with two
    hops fewer through the log.
    """
    alive = [one for one in gateways.all() if one.is_alive]
    count = max((one.heartbeat.shard_count for one in alive), default=0)
    owners = {shard: one for one in alive for shard in one.heartbeat.shards}
    items = []
    for shard in range(count):
        owner = owners.get(shard)
        addresses = {} if owner is None else owner.heartbeat.addresses
        name = None if owner is None else owner.name
        items.append(ShardView(shard=shard, gateway=name, addresses=addresses))
    return Placement(shards=count, items=items)


@router.get("/gateways/{name:segment}", responses={404: {"model": ProblemDetails}})
def get_gateway(gateways: Heard, name: str) -> GatewayView:
    """Show a gateway.

    The answer is its last heartbeat; it sends two a second.
    """
    found = gateways.get(name)
    if found is None:
        raise _unknown(name, [one.name for one in gateways.all()])
    return _gateway(found)


@router.post(
    "/gateways/{name:segment}/reload",
    status_code=HTTPStatus.ACCEPTED,
    openapi_extra=needs("admin"),
    responses=_ASKING,
)
def post_reload(gateways: Heard, log: Log, name: str) -> GatewayAsked:
    """Reload a gateway's files.

    Certificates and users apply to new connections, rights and bans to all.
    """
    return _ask(gateways, log, name, "reload")


@router.post(
    "/gateways/{name:segment}/drain",
    status_code=HTTPStatus.ACCEPTED,
    openapi_extra=needs("admin"),
    responses=_ASKING,
)
def post_drain(
    gateways: Heard, log: Log, name: str, drain: DrainRequest | None = None
) -> GatewayAsked:
    """Drain a gateway.

    It takes no new clients and disconnects its clients, some each second; 5.0 clients learn
    where to go. Sessions are saved first, so another gateway takes them over without loss. When
    `state` is `drained` the gateway can be stopped; it serves again after DELETE or a restart.
    """
    asked = drain or DrainRequest()
    return _ask(gateways, log, name, "drain", **asked.model_dump())


@router.delete(
    "/gateways/{name:segment}/drain",
    status_code=HTTPStatus.ACCEPTED,
    openapi_extra=needs("admin"),
    responses=_ASKING,
)
def delete_drain(gateways: Heard, log: Log, name: str) -> GatewayAsked:
    """End the drain of a gateway."""
    return _ask(gateways, log, name, "serve")


def _gateway(found: Presence) -> GatewayView:
    said = found.heartbeat
    return GatewayView(
        name=found.name,
        site=said.site,
        alive=found.is_alive,
        state=said.state,
        clients=said.clients,
        listeners=said.listeners,
        last_seen=datetime.fromtimestamp(said.at / 1000, tz=UTC),
        clock_ahead_seconds=None if found.clock_ahead_ms is None else found.clock_ahead_ms / 1000,
        rights_version=said.rights,
        incarnation=said.incarnation,
    )


def _ask(gateways: Gateways, log: Log, name: str, action: str, **value: Any) -> GatewayAsked:
    if gateways.get(name) is None:
        raise _unknown(name, [one.name for one in gateways.all()])
    ask_gateway(log, name, action, **value)
    return GatewayAsked(gateway=name, action=action)


def _unknown(name: str, names: list[str]) -> Problem:
    known = f"; there are: {', '.join(names)}" if names else ""
    return Problem(HTTPStatus.NOT_FOUND, f"no gateway {name!r}{known}")
