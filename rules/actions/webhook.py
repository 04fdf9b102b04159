"""`http`: send a request to a web server.

At least once: a request carries the header `Idempotency-Key`, the same when it comes again.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Self
from urllib.parse import quote, urlsplit

from pydantic import Field, field_validator, model_validator

from rules.actions.contract import (
    NO_PROBLEMS,
    ActionError,
    ActionFunction,
    ActionServices,
    Arguments,
    Problems,
    Request,
    Retry,
    Work,
)
from rules.actions.fields import ArgumentError, SecretTemplateText
from rules.templates import MissingField, Template

IDEMPOTENCY_KEY: Final = "Idempotency-Key"
MAX_URL_CHARACTERS: Final = 8_192
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_BEFORE_PATH: Final = re.compile(r"(https?)://([^/?#]*)(.*)", re.DOTALL)
_NO_LINE: Final = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
_RESERVED_HEADERS: Final = frozenset(
    {
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "upgrade",
        "te",
        "trailer",
        IDEMPOTENCY_KEY.lower(),
    }
)


class WebhookArgs(Arguments):
    """Arguments of `http`."""

    url: SecretTemplateText = Field(
        description="http:// or https://; path and query may have placeholders, their values are "
        "escaped"
    )
    method: Literal["POST", "PUT", "PATCH", "GET", "DELETE"] = "POST"
    headers: dict[str, SecretTemplateText] = Field(default_factory=dict, max_length=64)
    body: SecretTemplateText = Field(
        default="${.}", description="the row as JSON without it; GET and DELETE send none"
    )
    timeout_seconds: float = Field(default=10.0, gt=0, le=300, description="for a whole request")
    concurrency: int = Field(default=8, ge=1, le=64, description="requests under way at once")
    verify_tls: bool = Field(default=True, description="whether the certificate must be valid")
    retry: Retry = Retry()

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        found = _BEFORE_PATH.fullmatch(url)
        if found is None:
            raise ArgumentError("url does not begin with http:// or https://")
        authority = found[2]
        if "${" in authority or "$" in authority:
            raise ArgumentError(
                "placeholder in the host of url", hint="only path and query may have one"
            )
        if "@" in authority:
            raise ArgumentError("user in url", hint="use the header Authorization")
        if server_of(url) is None:
            raise ArgumentError("host of url is not valid", hint="write https://host[:port]/path")
        if "#" in found[3]:
            raise ArgumentError("url has a fragment, which is never sent")
        if not all(map(_is_plain, Template.parse(found[3]).literals)):
            raise ArgumentError("url holds a character that must be escaped")
        return url

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        for name in headers:
            if not _NAME.fullmatch(name):
                raise ArgumentError(f"{name!r} is no name of a header")
            if name.lower() in _RESERVED_HEADERS:
                raise ArgumentError(f"header {name} cannot be set")
            if not all(map(_NO_LINE.fullmatch, Template.parse(headers[name]).literals)):
                raise ArgumentError(f"header {name} would hold a control character")
        return headers

    @model_validator(mode="after")
    def _check_secrets(self) -> Self:
        if self.secrets and not self.verify_tls:
            raise ArgumentError(
                "a secret goes to no server whose certificate is not verified",
                hint="leave verify_tls out; http.ca_certificates trusts an authority of your own",
            )
        return self

    @property
    def secrets(self) -> frozenset[str]:
        """Names of the secrets that its requests hold."""
        texts = (self.url, self.body, *self.headers.values())
        return frozenset().union(*(Template.parse(text).secrets for text in texts))


def server_of(url: str) -> str | None:
    """Return the server of an address as `scheme://host[:port]`, one writing of each.

    None for a text that is no address of http or https.
    """
    found = _BEFORE_PATH.fullmatch(url)
    if found is None or not found[2].isascii() or re.search(r"[\s\\@\x00-\x20]", found[2]):
        return None
    try:
        parts = urlsplit(f"{found[1]}://{found[2]}/")
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not host or port == 0:
        return None
    host = f"[{host}]" if ":" in host else host
    is_usual = port in (None, 443 if found[1] == "https" else 80)
    return f"{found[1]}://{host}" + ("" if is_usual else f":{port}")


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and not re.search(r"[ \"<>\\^`{|}]", text)


class Webhook:
    """Sends one request for each output."""

    max_batch = 1
    may_fall_behind = True
    runs_recovered = True

    def __init__(self, args: WebhookArgs, services: ActionServices) -> None:
        self.concurrency = args.concurrency
        self.retry = args.retry
        self._method = args.method
        self._client = services.http(
            concurrency=args.concurrency,
            timeout_seconds=args.timeout_seconds,
            verify_tls=args.verify_tls,
        )
        before = _BEFORE_PATH.fullmatch(args.url)
        assert before is not None
        self._server = f"{before[1]}://{before[2]}"
        self._path = Template.parse(before[3] if before[3].startswith("/") else "/" + before[3])
        self._body = Template.parse(args.body)
        self._has_body = args.method not in ("GET", "DELETE") or "body" in args.model_fields_set
        headers = dict(args.headers)
        names = {name.lower() for name in headers}
        if self._has_body and "content-type" not in names:
            headers["Content-Type"] = "application/json"
        if "user-agent" not in names:
            headers["User-Agent"] = "mqlake"
        self._headers = [(name, Template.parse(text)) for name, text in headers.items()]
        self._read_secret = services.read_secret
        self._has_secrets = bool(args.secrets)
        for secret in sorted(args.secrets):
            services.check_secret(secret, server_of(args.url) or "")

    async def run(self, batch: Sequence[Work]) -> Problems:
        for work in batch:
            await self._client.send(self._request(work))
        return NO_PROBLEMS

    async def close(self) -> None:
        await self._client.close()

    def _request(self, work: Work) -> Request:
        try:
            path = self._with_secrets(self._path, _escape_secret).render(
                work, needs_all=True, escape=_escape
            )
        except MissingField as exc:
            raise ActionError(str(exc)) from exc
        if len(path) > MAX_URL_CHARACTERS:
            raise ActionError(f"url is longer than {MAX_URL_CHARACTERS} characters")
        headers: list[tuple[str, str]] = [(IDEMPOTENCY_KEY, work.action_id.decode())]
        for name, template in self._headers:
            value = self._with_secrets(template).render(work)
            if not _NO_LINE.fullmatch(value):
                raise ActionError(f"header {name} would hold a control character")
            headers.append((name, value))
        body = b""
        if self._has_body:
            template = self._with_secrets(self._body)
            body = work.output.row if template.is_row else template.render(work).encode()
        return Request(self._method, self._server + path, headers, body, self._has_secrets)

    def _with_secrets(self, template: Template, escape: Callable[[str], str] = str) -> Template:
        if not self._has_secrets:
            return template
        return template.with_secrets(lambda name: escape(self._read_secret(name)))


def _escape_secret(value: str) -> str:
    # It may be several levels of a path, T000/B000/xyz say.
    return quote(value, safe="/")


def _escape(value: Any) -> str:
    # A value cannot become a step up the path either.
    escaped = quote(value, safe="", errors="replace")
    return escaped.replace(".", "%2E") if escaped in (".", "..") else escaped


FUNCTION: Final = ActionFunction("http", WebhookArgs, Webhook, "sends an HTTP request")
