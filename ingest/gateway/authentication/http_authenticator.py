"""A web server as an authenticator.

It gets POST with a JSON object: `username`, `password` (null without one), `client_id`, `address`,
`protocol_level`. It answers 200 and a JSON object: `result` is `allow`, `deny` or `next`; beside
`allow` may stand `username` (else that of CONNECT counts), `expires_at` (seconds UTC at which its
connection ends) and, where it brings rights, `roles`, `rights` and `attributes`. After any other
answer, or none, the client is refused: the next authenticator might let in a client that this one
would not.
"""

from __future__ import annotations

import hmac
import json
import math
import secrets
from typing import TYPE_CHECKING, Any, Final

from ingest.gateway.authentication.outcomes import (
    NEXT,
    WRONG_PASSWORD,
    Accepted,
    Next,
    Verdict,
)
from ingest.gateway.authentication.web import BUSY, NO_ANSWER, Answering, NoAnswer, WebServer
from mqlake.rights.grants import NO_GRANTS, GrantsError, read_grants
from mqlake.security.saslprep import UnpreparableText, prepare

if TYPE_CHECKING:
    from ingest.gateway.authentication.outcomes import Attempt
    from ingest.gateway.settings.authenticators import HttpAuthenticatorSettings
    from mqlake.clock import Clock
    from mqlake.rights.grants import Grants

MAX_WAITING: Final = 1_000
"""Clients whose request waits to be sent; further ones hear that the server is busy."""
MAX_ANSWER_BYTES: Final = 64 * 1024
MAX_REMEMBERED: Final = 10_000


class HttpAuthenticator:
    """Asks one web server.

    Args:
        name: Name in the settings.
        settings: Address and bounds of the server.
        clock: Measures how long an answer counts.
    """

    def __init__(self, name: str, settings: HttpAuthenticatorSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        headers = [
            (b"Content-Type", b"application/json"),
            *(
                (key.encode(), one.get_secret_value().encode())
                for key, one in settings.headers.items()
            ),
        ]
        self._server = WebServer(name, settings.url, settings, settings.max_requests, headers)
        self._answering = Answering(name)
        self._asking = 0
        # By the request's digest under a key of our own: a verdict, and until when it counts.
        self._remembered: dict[bytes, tuple[float, Accepted]] = {}
        self._key = secrets.token_bytes(32)

    async def check(self, attempt: Attempt) -> Verdict | Next:
        """Ask about a client."""
        try:
            body = _question(attempt)
        except UnicodeDecodeError:
            return WRONG_PASSWORD  # a password that is no text
        digest = hmac.digest(self._key, body, "sha256")
        until, accepted = self._remembered.get(digest, (-math.inf, None))
        if accepted is not None and self._clock.monotonic() < until:
            return accepted
        if self._asking >= self._settings.max_requests + MAX_WAITING:
            return BUSY
        self._asking += 1
        try:
            verdict = await self._ask(body, attempt)
        finally:
            self._asking -= 1
        if isinstance(verdict, Accepted) and self._settings.cache_seconds:
            self._remember(digest, verdict)
        return verdict

    async def reload(self) -> None:
        """There is no file."""

    async def close(self) -> None:
        await self._server.close()

    async def _ask(self, body: bytes, attempt: Attempt) -> Verdict | Next:
        try:
            answer = await self._server.ask("POST", body, MAX_ANSWER_BYTES)
            verdict = _verdict(answer, attempt, brings_rights=self._settings.brings_rights)
        except NoAnswer as exc:
            self._answering.note_silence(str(exc))
            return NO_ANSWER
        self._answering.note_answer()
        return verdict

    def _remember(self, digest: bytes, accepted: Accepted) -> None:
        seconds = self._settings.cache_seconds
        if accepted.ends_at is not None:
            seconds = min(seconds, accepted.ends_at - self._clock.now_ms() / 1000)
        self._remembered.pop(digest, None)
        if len(self._remembered) >= MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[digest] = (self._clock.monotonic() + seconds, accepted)


def _question(attempt: Attempt) -> bytes:
    password = attempt.password
    return json.dumps(
        {
            "username": attempt.username,
            "password": None if password is None else password.decode(),
            "client_id": attempt.client_id,
            "address": attempt.address,
            "protocol_level": attempt.protocol_level,
        }
    ).encode()


def _verdict(answer: bytes, attempt: Attempt, *, brings_rights: bool) -> Verdict | Next:
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError) as exc:
        raise NoAnswer("its answer is not JSON") from exc
    result = found.get("result") if isinstance(found, dict) else None
    if result == "deny":
        return WRONG_PASSWORD
    if result == "next":
        return NEXT
    if result != "allow":
        raise NoAnswer(
            f"member 'result' of its answer is {result!r}, expected 'allow', 'deny' or 'next'"
        )
    grants = _grants_in(found) if brings_rights else NO_GRANTS
    return Accepted(_name_in(found, attempt), ends_at=_end_in(found), grants=grants)


def _grants_in(found: dict[str, Any]) -> Grants:
    try:
        return read_grants(found.get("roles"), found.get("rights"), found.get("attributes"))
    except GrantsError as exc:
        raise NoAnswer(f"its answer has no rights (docs/rights.md): {exc}") from exc


def _name_in(found: dict[str, Any], attempt: Attempt) -> str:
    name = found.get("username", attempt.username)
    if type(name) is not str:
        raise NoAnswer(
            f"member 'username' of its answer is {name!r}, expected text: CONNECT has no user name"
        )
    try:
        return prepare(name, "user name")
    except UnpreparableText as exc:
        raise NoAnswer(str(exc)) from exc


def _end_in(found: dict[str, Any]) -> float | None:
    ends_at = found.get("expires_at")
    if ends_at is None:
        return None
    if type(ends_at) not in {int, float} or not math.isfinite(ends_at):
        raise NoAnswer(f"member 'expires_at' of its answer is {ends_at!r}, expected seconds UTC")
    return float(ends_at)
