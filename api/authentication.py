"""Who may ask: whoever shows the administrator's bearer token."""

import secrets
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from api.problems import Problem
from mqlake.errors import OperationalError

_bearer = HTTPBearer(auto_error=False, description="the token in <data-dir>/api-token")


def read_token(path: Path) -> str:
    """Return the administrator's token.

    Raises:
        OperationalError: The file is missing or empty: without a token nobody could be told apart.
    """
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise OperationalError(f"token_file {path} cannot be read: {exc}") from exc
    if not token:
        raise OperationalError(f"token_file {path} is empty: write a token into it")
    return token


def require_administrator(
    request: Request,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> None:
    """Refuse a request without the right token, after the same time whatever is wrong with it."""
    token: str = request.app.state.token
    given = "" if credentials is None else credentials.credentials
    if not secrets.compare_digest(given.encode(), token.encode()):
        raise Problem(
            HTTPStatus.UNAUTHORIZED,
            "send the token in <data-dir>/api-token as: Authorization: Bearer <token>",
            {"WWW-Authenticate": "Bearer"},
        )
