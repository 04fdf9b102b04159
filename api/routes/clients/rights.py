"""Rights of clients at all gateways."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, Field

from api.entrance.authentication import CurrentCaller, audited, needs
from api.jobs.jobs import to_time
from api.web.pages import Page
from api.web.problems import Problem, ProblemDetails
from api.wiring.dependencies import ChangeRights, KnownRights
from mqlake.rights.applied import AppliedRights
from mqlake.rights.documents import difference, write_rights
from mqlake.rights.model import RightsFile, RightsRule

router = APIRouter(tags=["rights"], responses={503: {"model": ProblemDetails}})

_ADMIN: Final = needs("admin")
_NOTHING: Final = RightsFile(rules=())
_NOT_FOUND: Final[dict[int | str, dict[str, Any]]] = {404: {"model": ProblemDetails}}
_TOML: Final = "application/toml"


Number = Annotated[int, Path(ge=1, le=2**53, description="number of a version")]


class WantedRights(RightsFile):
    """The complete rights; everything else is denied."""

    version: int | None = Field(
        default=None,
        ge=0,
        description="the version planned against, 0: none applied; 409 if another one is in force. "
        "Omitted: replaces any version",
    )


class RightsVersion(BaseModel):
    version: int = Field(description="0: none applied, each gateway uses its rights_file")
    applied_at: datetime | None
    applied_by: str | None
    rule_count: int


class RightsView(RightsVersion):
    roles: dict[str, list[str]]
    rules: list[dict[str, Any]] = Field(description="the first that decides applies")


class RightsPlan(BaseModel):
    version: int = Field(description="in force; send it with PUT")
    changes: bool
    diff: str = Field(description="unified, of both as files; empty without changes")


@router.get("/rights", openapi_extra=_ADMIN)
def get_rights(rights: KnownRights) -> RightsView:
    """Show the applied rights."""
    return _view(rights.current)


@router.post(
    "/rights/plan",
    openapi_extra={**_ADMIN, **audited(is_audited=False)},
    responses={422: {"model": ProblemDetails}},
)
def post_plan(rights: KnownRights, wanted: RightsFile) -> RightsPlan:
    """Plan a change of rights.

    The answer shows the changes; none is made.
    """
    current = rights.current
    number = 0 if current is None else current.version
    before = None if current is None else current.content
    names = (f"version {number}" if number else "nothing", f"version {number + 1}")
    diff = difference(before, wanted, names)
    return RightsPlan(version=number, changes=before != wanted, diff=diff)


@router.put(
    "/rights",
    openapi_extra=_ADMIN,
    responses={409: {"model": ProblemDetails}, 422: {"model": ProblemDetails}},
)
def put_rights(caller: CurrentCaller, changes: ChangeRights, wanted: WantedRights) -> RightsView:
    """Apply rights.

    They replace all earlier rights at all gateways, also those of files, and apply at once, also to
    connected clients.
    """
    file = RightsFile.model_construct(roles=wanted.roles, rules=wanted.rules)
    applied = changes.apply(file, caller.name, wanted.version)
    return _view(applied)


@router.get(
    "/rights/export",
    openapi_extra=_ADMIN,
    response_class=Response,
    responses={200: {"content": {_TOML: {"schema": {"type": "string"}}}}},
)
def export_rights(rights: KnownRights) -> Response:
    """Export the applied rights.

    The answer has the format of a file.
    """
    return Response(write_rights(rights.current or _NOTHING), media_type=_TOML)


@router.get("/rights/versions", openapi_extra=_ADMIN)
def get_rights_versions(rights: KnownRights) -> Page[RightsVersion]:
    """List versions of the rights.

    The newest come first; the last 20 are kept.
    """
    views = [RightsVersion(**_said(one)) for one in rights.versions()]
    return Page(items=views, next_cursor=None)


@router.get("/rights/versions/{version:segment}", openapi_extra=_ADMIN, responses=_NOT_FOUND)
def get_rights_version(rights: KnownRights, version: Number) -> RightsView:
    """Show a version of the rights."""
    found = next((one for one in rights.versions() if one.version == version), None)
    if found is None:
        raise Problem(HTTPStatus.NOT_FOUND, f"version {version} of the rights is not kept")
    return _view(found)


def _said(rights: AppliedRights | None) -> dict[str, Any]:
    return {
        "version": 0 if rights is None else rights.version,
        "applied_at": None if rights is None else to_time(rights.at),
        "applied_by": None if rights is None else rights.by,
        "rule_count": 0 if rights is None else len(rights.rules),
    }


def _view(rights: AppliedRights | None) -> RightsView:
    content = _NOTHING if rights is None else rights
    return RightsView(
        **_said(rights),
        roles={role: list(users) for role, users in content.roles.items()},
        rules=[_shown(rule) for rule in content.rules],
    )


def _shown(rule: RightsRule) -> dict[str, Any]:
    return rule.model_dump(mode="json", exclude_defaults=True)
