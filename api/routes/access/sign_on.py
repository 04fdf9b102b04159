"""Logging in at an identity provider (OpenID Connect), for browsers."""

import hmac
import secrets
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Cookie, Query, Request
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, Field

from api.access.logins import WrongCredentials
from api.access.provider import CALLBACK, LoginRefused, Provider, derived
from api.audit.trail import begin_attempt, known_as
from api.dashboard.serving import PATH
from api.entrance.authentication import authenticator_of, counting_login
from api.routes.access.session import open_session
from api.settings import PREFIX
from api.web.problems import Problem, ProblemDetails
from api.wiring.dependencies import KnownAccess, LoggingIn, Oidc, Settings

router = APIRouter(tags=["access"])

SEED_COOKIE: Final = "mqlake_login"
SEED_SECONDS: Final = 600
"""For a login at the provider."""
_COOKIE_PATH: Final = f"{PREFIX}/login/oidc"
_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    code: {"model": ProblemDetails} for code in (401, 404, 429, 503)
}


class LoginWays(BaseModel):
    oidc: str | None = Field(
        description="name of the identity provider, at GET /login/oidc; null: none"
    )


@router.get("/login")
def get_login(settings: Settings) -> LoginWays:
    """Show further ways to log in.

    Tokens and passwords are not listed.
    """
    return LoginWays(oidc=None if settings.oidc is None else settings.oidc.name)


@router.get(
    "/login/oidc",
    status_code=HTTPStatus.SEE_OTHER,
    response_class=RedirectResponse,
    responses=_ERRORS,
)
async def get_login_oidc(request: Request, oidc: Oidc) -> RedirectResponse:
    """Redirect to the identity provider."""
    provider = _require(oidc)
    seed = secrets.token_urlsafe(32)
    url = await provider.login_url(seed)
    answer = RedirectResponse(url, HTTPStatus.SEE_OTHER)
    answer.set_cookie(
        SEED_COOKIE,
        seed,
        max_age=SEED_SECONDS,
        path=_COOKIE_PATH,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",  # the provider's page sends the browser back
    )
    return answer


@router.get(
    CALLBACK,
    status_code=HTTPStatus.SEE_OTHER,
    response_class=RedirectResponse,
    responses={**_ERRORS, 409: {"model": ProblemDetails}},
)
async def get_login_oidc_callback(
    request: Request,
    _access: KnownAccess,
    logins: LoggingIn,
    oidc: Oidc,
    code: Annotated[str, Query(max_length=4096)] = "",
    state: Annotated[str, Query(max_length=256)] = "",
    error: Annotated[str, Query(max_length=256, description="from the provider")] = "",
    seed: Annotated[str, Cookie(alias=SEED_COOKIE, max_length=256)] = "",
) -> RedirectResponse:
    """Log in from the identity provider.

    The provider identifies the user; the account of that name determines the rights.
    """
    provider = _require(oidc)
    request.scope["query_string"] = b""  # no other part may read the code
    with counting_login(authenticator_of(request), request, ""):
        await begin_attempt(request, "", None, "oidc", None)
        if not seed or not hmac.compare_digest(state.encode(), derived(seed, "state").encode()):
            raise WrongCredentials(
                "this browser has not begun that login, or too long ago: begin again"
            )
        if error or not code:
            raise WrongCredentials(f"the identity provider refuses: {error[:100] or 'no code'}")
        try:
            name = await provider.username(seed, code)
        except LoginRefused as exc:
            raise WrongCredentials(str(exc)) from exc
        caller = logins.by_provider(name)
    known_as(request, caller.name, caller.role, caller.tenants)
    answer = RedirectResponse(PATH, HTTPStatus.SEE_OTHER)
    await open_session(request, answer, logins, caller)
    answer.delete_cookie(SEED_COOKIE, path=_COOKIE_PATH, httponly=True, samesite="lax")
    return answer


def _require(provider: Provider | None) -> Provider:
    if provider is None:
        raise Problem(HTTPStatus.NOT_FOUND, "no identity provider is set")
    return provider
