"""Ask the REST API of a system, here or elsewhere, with the standard library alone."""

import http.client
import json
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote, urlencode

from mqlake.errors import OperationalError
from mqlake.processes.status import SystemState, read_state
from mqlake.security.tls import pinned_context

PREFIX: Final = "/api/v1"
TIMEOUT_SECONDS: Final = 60.0
FOLLOW_SECONDS: Final = 90.0
"""For so long an API is asked again that says when that makes sense."""
PAGE_ITEMS: Final = 500
AGENT: Final = "mqlake"
"""User agent of the command line, for the table `audit_log`."""
TOKEN_FILE: Final = "api-token"  # noqa: S105 - the name of the file


class ApiError(OperationalError):
    """The API has refused.

    Attributes:
        status: HTTP status code.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def api_context(state: SystemState) -> ssl.SSLContext | None:
    """Return how the API of a system is asked; None: without TLS.

    Raises:
        OperationalError: Its certificate cannot be read.
    """
    return pinned_context(Path(state.api_certificate)) if state.api_certificate else None


class ApiAddress(NamedTuple):
    """An API of any machine, and who asks it.

    Attributes:
        url: Such as `https://mqlake.example:8080`. Its certificate is checked against the
            authorities that this machine trusts.
        token_file: File with a key of the API.
    """

    url: str
    token_file: Path


System: TypeAlias = Path | ApiAddress
"""A data directory of this machine, whose state says where the API is, or an API elsewhere."""


class ApiClient:
    """The API of a system.

    Args:
        system: Whose.

    Raises:
        OperationalError: No system runs there, its URL is none, or its token or certificate cannot
            be read.
    """

    def __init__(self, system: System) -> None:
        if isinstance(system, ApiAddress):
            url, token_file, proxies = _base_url(system.url), system.token_file, None
            context = ssl.create_default_context() if url.startswith("https:") else None
        else:
            state = read_state(system)
            url, token_file, proxies = state.api_url, system / TOKEN_FILE, dict[str, str]()
            context = api_context(state)
        self._url = url + PREFIX
        try:
            self._token = token_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise OperationalError(f"the API's token {token_file} cannot be read: {exc}") from exc
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler(proxies),
            urllib.request.HTTPSHandler(context=context),
            _NoRedirects,
        )

    def get(self, path: str, **parameters: Any) -> Any:
        """Return the answer of a path; parameters that are None are left out.

        Raises:
            ApiError: The API answers with an error; the other methods raise it too.
            OperationalError: It does not answer; the other methods raise it too.
        """
        return self._ask("GET", path, parameters)

    def post(self, path: str, body: dict[str, Any] | None = None, **parameters: Any) -> Any:
        return self._ask("POST", path, parameters, body)

    def put(self, path: str, body: dict[str, Any] | None = None, **parameters: Any) -> Any:
        return self._ask("PUT", path, parameters, body)

    def upload(self, path: str, data: bytes, content_type: str, **parameters: Any) -> Any:
        """PUT bytes as they are."""
        return self._ask("PUT", path, parameters, data, content_type)

    def delete(self, path: str, **parameters: Any) -> Any:
        return self._ask("DELETE", path, parameters)

    @contextmanager
    def stream(
        self, path: str, body: dict[str, Any], *, timeout_seconds: float, **parameters: Any
    ) -> Iterator[http.client.HTTPResponse]:
        """Post, and give the answer to be read piece by piece.

        Raises:
            ApiError: The API answers with an error.
            OperationalError: It does not answer, or stops in the middle.
        """
        request = self._request("POST", path, parameters, body)
        try:
            with self._open(request, timeout_seconds) as answer:
                yield answer
        except urllib.error.HTTPError as exc:
            raise ApiError(_problem(exc), exc.code) from exc
        except BrokenPipeError:
            raise
        except (OSError, ValueError, http.client.HTTPException) as exc:
            raise OperationalError(f"the API at {self._url} does not answer: {exc}") from exc

    def items(self, path: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        """Yield the items of a list, asking for a page when the one before is used up."""
        for page in self.pages(path, **parameters):
            yield from page["items"]

    def pages(self, path: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        """Yield the pages of a list."""
        cursor: str | None = None
        while True:
            page = self.get(path, limit=PAGE_ITEMS, cursor=cursor, **parameters)
            yield page
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def events(self, path: str, **parameters: Any) -> Iterator[tuple[str, Any]]:
        """Yield the events of a live stream, each with its name, until it ends.

        Raises:
            ApiError: The API answers with an error.
            OperationalError: It does not answer, or no more.
        """
        request = self._request("GET", path, parameters)
        try:
            # A stream says something every 15 seconds.
            with self._open(request) as answer:
                name = ""
                for line in answer:
                    field, _, text = line.decode().rstrip("\n").partition(": ")
                    if field == "event":
                        name = text
                    elif field == "data":
                        yield name, json.loads(text)
        except urllib.error.HTTPError as exc:
            raise ApiError(_problem(exc), exc.code) from exc
        except (OSError, ValueError, http.client.HTTPException) as exc:
            raise OperationalError(f"the API at {self._url} does not answer: {exc}") from exc

    def _open(
        self, request: urllib.request.Request, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> http.client.HTTPResponse:
        """Ask, and again as long as the API says by Retry-After that it is about to be ready."""
        until = time.monotonic() + FOLLOW_SECONDS
        while True:
            try:
                answer: http.client.HTTPResponse = self._opener.open(
                    request, timeout=timeout_seconds
                )
            except urllib.error.HTTPError as exc:
                pause = exc.headers.get("Retry-After", "")
                is_soon = exc.code == HTTPStatus.SERVICE_UNAVAILABLE and pause.isdecimal()
                if not is_soon or time.monotonic() + int(pause) > until:
                    raise
                exc.close()
                time.sleep(int(pause))
            else:
                return answer

    def _request(
        self,
        method: str,
        path: str,
        parameters: dict[str, Any],
        body: dict[str, Any] | bytes | None = None,
        content_type: str = "application/json",
    ) -> urllib.request.Request:
        given = {name: _text(value) for name, value in parameters.items() if value is not None}
        url = self._url + quote(path) + (f"?{urlencode(given, doseq=True)}" if given else "")
        headers = {"Authorization": f"Bearer {self._token}", "User-Agent": AGENT}
        if body is not None:
            headers["Content-Type"] = content_type
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        return urllib.request.Request(  # noqa: S310 - it is an HTTP URL
            url, data, headers, method=method
        )

    def _ask(
        self,
        method: str,
        path: str,
        parameters: dict[str, Any],
        body: dict[str, Any] | bytes | None = None,
        content_type: str = "application/json",
    ) -> Any:
        request = self._request(method, path, parameters, body, content_type)
        try:
            with self._open(request) as answer:
                found = answer.read()
                return json.loads(found) if found else None
        except urllib.error.HTTPError as exc:
            raise ApiError(_problem(exc), exc.code) from exc
        except (OSError, ValueError) as exc:
            raise OperationalError(f"the API at {self._url} does not answer: {exc}") from exc


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """An API redirects no request; where another server would, the token does not go there."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _base_url(url: str) -> str:
    """Return the URL of an API without its path.

    Raises:
        OperationalError: It is none of HTTP, or has a part that none has.
    """
    if not re.fullmatch(rf"https?://[^/@?#\s]+({PREFIX})?/?", url):
        raise OperationalError(
            f"{url!r} is no address of an API: expected one such as https://mqlake.example:8080"
        )
    return url.removesuffix("/").removesuffix(PREFIX)


def _text(value: Any) -> Any:
    """Return a parameter as the API reads it; a list is given several times."""
    if isinstance(value, list | tuple):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def _problem(error: urllib.error.HTTPError) -> str:
    """Return the error that the API tells."""
    with error:
        try:
            found = json.load(error)
            detail = "; ".join(
                [str(found["detail"])]
                + [f"{one['field']}: {one['problem']}" for one in found.get("errors") or []]
            )
            if found.get("line") is not None and f"line {found['line']}" not in detail:
                detail += f" (line {found['line']}, column {found['column']})"
            if found.get("hint") and found["hint"] not in detail:
                detail += f": {found['hint']}"
        except (OSError, ValueError, KeyError, TypeError):
            return f"the API answers {error.code} {HTTPStatus(error.code).phrase}"
    return detail
