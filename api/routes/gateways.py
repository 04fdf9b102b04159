"""What an administrator asks of one gateway."""

from http import HTTPStatus
from typing import TYPE_CHECKING

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field

from api.authentication import require_administrator
from api.problems import Problem, ProblemDetails
from mqlake.errors import LogError, OperationalError
from mqlake.status import read_state

if TYPE_CHECKING:
    from api.control import GatewayControl

router = APIRouter(tags=["gateways"])


class Asked(BaseModel):
    gateway: str
    action: str = Field(description="what the gateway was asked to do; its log says how it went")


@router.post(
    "/gateways/{name}/reload",
    status_code=HTTPStatus.ACCEPTED,
    dependencies=[Depends(require_administrator)],
    responses={code: {"model": ProblemDetails} for code in (401, 404, 503)},
)
def post_reload(request: Request, name: str) -> Asked:
    """Make a gateway read its files again: TLS certificates, for connections from then on."""
    _send(request, name, "reload")
    return Asked(gateway=name, action="reload")


def _send(request: Request, name: str, action: str) -> None:
    control: GatewayControl = request.app.state.control
    try:
        state = read_state(request.app.state.data_dir)
        names = [gateway.name for gateway in state.gateways]
        if name not in names:
            raise Problem(
                HTTPStatus.NOT_FOUND, f"no gateway {name!r}; there are: {', '.join(names)}"
            )
        control.send(state.bootstrap_servers, name, action)
    except (OperationalError, LogError) as exc:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(exc)) from exc
