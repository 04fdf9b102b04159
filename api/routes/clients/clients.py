"""Sessions and their subscriptions: list, look at, end."""

from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, Field

from api.clients.cache import CachedSession, ClientFilter
from api.clients.control import disconnect
from api.clients.sessions import (
    ClientSessionView,
    ClientSubscriptionView,
    ClientSummary,
    SentMessage,
    SubscriptionView,
    read_client,
    read_client_subscription,
    read_summary,
)
from api.settings import PREFIX
from api.web.pages import DEFAULT_LIMIT, Cursor, Limit, Page, Tenant, read_cursor, to_page
from api.web.problems import Problem, ProblemDetails
from api.wiring.dependencies import Cache, Heard, Log
from mqlake.records.tenants import DEFAULT_TENANT

router = APIRouter(
    tags=["clients"],
    responses={code: {"model": ProblemDetails} for code in (422, 503)},
)


class ClientAsked(BaseModel):
    client_id: str
    gateways: list[str] = Field(
        description="those asked: all that are live; the one with the client acts"
    )


class InFlight(BaseModel):
    out: list[SentMessage] = Field(description="to the client, in the order of sending")
    in_: list[int] = Field(
        alias="in", description="packet identifiers of QoS 2 messages from the client"
    )


_OF_CLIENT: Final[dict[int | str, dict[str, Any]]] = {
    307: {"description": "the whole path names a client, at `Location`"},
    404: {"model": ProblemDetails},
}


@router.get("/clients")
def get_clients(
    cache: Cache,
    tenant: Tenant = DEFAULT_TENANT,
    connected: Annotated[
        bool | None, Query(description="true: only connected ones; false: only others")
    ] = None,
    username: Annotated[str | None, Query(description="exactly this user name")] = None,
    gateway: Annotated[str | None, Query(description="of the current or last connection")] = None,
    client_id_prefix: Annotated[
        str | None, Query(description="prefix of the client identifier")
    ] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[ClientSummary]:
    """List clients.

    These are sessions that outlive their connection, connected or not, and clients with a will.
    Others are known only to their gateway, not written to the log and not listed; the table
    `events` has the times of their connections.
    """
    asked = ClientFilter(connected, username, gateway, client_id_prefix)
    (after,) = read_cursor(cursor, 1)
    values = cache.clients(tenant, asked, after, limit + 1)
    found = [read_summary(value) for value in values]
    return to_page(found, limit, lambda one: (one.client_id,))


# Before /clients/{client_id}: a client identifier with its slashes as they are may end like these.
@router.get(
    "/clients/{client_id:segments}/subscriptions",
    response_model=Page[SubscriptionView],
    responses=_OF_CLIENT,
)
def get_client_subscriptions(
    request: Request, cache: Cache, client_id: str, tenant: Tenant = DEFAULT_TENANT
) -> object:
    """List a client's subscriptions.

    All are on one page. Without a client of this identifier, but with one whose identifier ends in
    `/subscriptions`, the answer is a redirect to that client.
    """
    if longer := _longer(request, cache, tenant, client_id, "subscriptions"):
        return longer
    client = read_client(_stored(cache, tenant, client_id))
    return Page(items=client.subscriptions, next_cursor=None)


@router.get(
    "/clients/{client_id:segments}/in_flight", response_model=InFlight, responses=_OF_CLIENT
)
def get_client_in_flight(
    request: Request, cache: Cache, client_id: str, tenant: Tenant = DEFAULT_TENANT
) -> object:
    """List a client's messages in flight.

    These are QoS 1 and 2 messages whose exchange is not finished, as of the last progress record,
    about a second old. There are no more than the client's and the gateway's Receive Maximum.
    Without a client of this identifier, but with one whose identifier ends in `/in_flight`, the
    answer is a redirect to that client.
    """
    if longer := _longer(request, cache, tenant, client_id, "in_flight"):
        return longer
    client = read_client(_stored(cache, tenant, client_id))
    return InFlight.model_validate({"out": client.in_flight_out, "in": client.in_flight_in})


@router.get("/clients/{client_id:segments}", responses={404: {"model": ProblemDetails}})
def get_client(cache: Cache, client_id: str, tenant: Tenant = DEFAULT_TENANT) -> ClientSessionView:
    """Show a client's session.

    Messages in flight are as of the last progress record, about a second old.
    """
    return read_client(_stored(cache, tenant, client_id))


@router.delete("/clients/{client_id:segments}", status_code=HTTPStatus.ACCEPTED)
def delete_client(
    gateways: Heard,
    log: Log,
    client_id: str,
    tenant: Tenant = DEFAULT_TENANT,
    end_session: Annotated[
        bool, Query(description="false: only the connection ends, the session stays")
    ] = True,
) -> ClientAsked:
    """Disconnect a client.

    Its connection is closed (5.0: DISCONNECT 0x98) and its session ends; a delayed will is
    published. All live gateways get the request through the log, and the one with the client acts a
    moment later. So it also works for clients that are not listed, and an unknown client is no
    error.
    """
    names = [gateway.name for gateway in gateways.all() if gateway.is_alive]
    if not names:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "no gateway is alive")
    disconnect(log, names, tenant, client_id, end_session=end_session)
    return ClientAsked(client_id=client_id, gateways=names)


@router.get("/subscriptions")
def get_subscriptions(
    cache: Cache,
    tenant: Tenant = DEFAULT_TENANT,
    topic_filter: Annotated[str | None, Query(description="exactly this topic filter")] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[ClientSubscriptionView]:
    """List all subscriptions.

    Those of listed clients are sorted by topic filter and client identifier.
    """
    after_filter, after_client = read_cursor(cursor, 2)
    stored = cache.subscriptions(tenant, topic_filter, (after_filter, after_client), limit + 1)
    found = [read_client_subscription(tenant, one.client_id, one.value) for one in stored]
    return to_page(found, limit, lambda one: (one.topic_filter, one.client_id))


def _stored(cache: Cache, tenant: str, client_id: str) -> CachedSession:
    stored = cache.client(tenant, client_id)
    if stored is None:
        raise Problem(HTTPStatus.NOT_FOUND, f"no session of client {client_id!r} is stored")
    return stored


def _longer(
    request: Request, cache: Cache, tenant: str, client_id: str, part: str
) -> RedirectResponse | None:
    """Return a redirect to the client whose identifier is the whole path; None: there is none.

    Args:
        request: Asks for a part of a client.
        cache: Knows the clients.
        tenant: Theirs.
        client_id: A client of this identifier counts first.
        part: The part's name, the last segment of the path.
    """
    longer = f"{client_id}/{part}"
    if cache.client(tenant, client_id) is not None or cache.client(tenant, longer) is None:
        return None
    path = f"{PREFIX}/clients/{quote(longer, safe='')}"
    return RedirectResponse(f"{path}?{request.url.query}" if request.url.query else path)
