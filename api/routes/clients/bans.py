"""Bans: clients, users and addresses that no gateway lets in."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from api.entrance.authentication import CurrentCaller, needs
from api.jobs.jobs import to_time
from api.web.pages import DEFAULT_LIMIT, Cursor, Limit, Page, read_cursor, to_page
from api.web.problems import ProblemDetails
from api.wiring.dependencies import ChangeBans, KnownBans
from mqlake.bans import Ban, BannedClient, KeptBan, Network, Offence

router = APIRouter(tags=["bans"], responses={503: {"model": ProblemDetails}})

MAX_NAMES: Final = 100
"""Most names of a kind in one ban."""

Name = Annotated[str, Field(min_length=1, max_length=1024)]


class NewBan(BaseModel):
    """A ban of all clients that match one of the names or networks."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "client_ids": ["evil-*"],
                    "addresses": ["203.0.113.0/24"],
                    "until": "2040-01-01T00:00:00Z",
                    "reason": "floods plant/#",
                }
            ]
        },
    )

    client_ids: list[Name] = Field(
        default=[], max_length=MAX_NAMES, description="a * at the end matches any ending"
    )
    users: list[Name] = Field(default=[], max_length=MAX_NAMES)
    addresses: list[Network] = Field(
        default=[], max_length=MAX_NAMES, description="addresses or networks, IPv4 or IPv6"
    )
    tokens: list[Name] = Field(
        default=[],
        max_length=MAX_NAMES,
        description="claim jti of revoked tokens (JWT); bans clients that use them",
    )
    until: AwareDatetime | None = Field(default=None, description="null: forever")
    reason: str = Field(default="", max_length=200, description="sent to 5.0 clients")

    @model_validator(mode="after")
    def _is_for_somebody(self) -> "NewBan":
        if not (self.client_ids or self.users or self.addresses or self.tokens):
            raise ValueError("expected client_ids, users, addresses or tokens")
        return self


class BanView(BaseModel):
    id: str
    client_ids: list[str]
    users: list[str]
    addresses: list[str]
    tokens: list[str]
    clients: list[BannedClient] = Field(description="each with one user, for an offence")
    offence: Offence = Field(
        description="for which a gateway banned it: `guesses` of passwords, `flaps` of a client; "
        "empty: banned on request"
    )
    until: datetime | None
    reason: str
    created_at: datetime | None
    created_by: str
    over: bool = Field(description="it has expired; the next ban removes it")


_NOT_FOUND: Final[dict[int | str, dict[str, Any]]] = {404: {"model": ProblemDetails}}


@router.get("/bans")
def get_bans(
    bans: KnownBans, changes: ChangeBans, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[BanView]:
    """List bans by identifier.

    Bans in a gateway's file are not listed.
    """
    (after,) = read_cursor(cursor, 1)
    now_ms = changes.now_ms()
    found = [_view(name, ban, now_ms) for name, ban in bans.all() if name > after]
    return to_page(found[: limit + 1], limit, lambda view: (view.id,))


@router.post(
    "/bans",
    status_code=HTTPStatus.CREATED,
    openapi_extra=needs("admin"),
    responses={409: {"model": ProblemDetails}, 422: {"model": ProblemDetails}},
)
def post_ban(caller: CurrentCaller, changes: ChangeBans, new: NewBan) -> BanView:
    """Ban clients.

    All gateways refuse them, and disconnect those that are connected.
    """
    ban = Ban.model_validate(new.model_dump())
    name, kept = changes.create(ban, caller.name)
    return _view(name, kept, changes.now_ms())


@router.delete(
    "/bans/{id:segment}",
    status_code=HTTPStatus.NO_CONTENT,
    openapi_extra=needs("admin"),
    responses=_NOT_FOUND,
)
def delete_ban(changes: ChangeBans, id: str) -> None:
    """Lift a ban."""
    changes.delete(id)


def _view(name: str, ban: KeptBan, now_ms: int) -> BanView:
    return BanView(
        id=name,
        client_ids=list(ban.client_ids),
        users=list(ban.users),
        addresses=[str(one) for one in ban.addresses],
        tokens=list(ban.tokens),
        clients=list(ban.clients),
        offence=ban.offence,
        until=ban.until,
        reason=ban.reason,
        created_at=to_time(ban.at),
        created_by=ban.by,
        over=ban.is_over(now_ms),
    )
