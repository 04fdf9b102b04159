"""An identity provider (OpenID Connect 1.0), which identifies a user who logs in by browser.

Authorization code with PKCE (RFC 7636): the browser brings a code, this asks the provider for the
token that it stands for. State, nonce and verifier of a login follow from its seed, which the
browser keeps in a cookie: nothing is kept here.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import math
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import httpcore
import jwt

from api.settings import OidcSettings
from mqlake.clock import Clock
from mqlake.errors import MqlakeError, OperationalError
from mqlake.security.addresses import is_loopback
from mqlake.security.checked_http import AddressRefused, CheckedBackend, make_ssl_context

CALLBACK: Final = "/login/oidc/callback"
RETRY_SECONDS: Final = 5.0
"""A provider that did not answer is not asked sooner: anybody may begin a login."""
KNOWN_SECONDS: Final = 3600.0
"""How long the provider's addresses and keys count before they are asked for again."""
LEEWAY_SECONDS: Final = 30.0
MAX_ANSWER_BYTES: Final = 256 * 1024
ALGORITHMS: Final = frozenset(
    ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"]
)
"""None by a shared secret: a client that may ask may not sign."""


class LoginRefused(MqlakeError):  # noqa: N818 - it names the thing refused
    """The provider does not identify the user; says why, and nothing of a token."""


@dataclass(frozen=True, slots=True)
class _Found:
    """Metadata of the provider."""

    authorization_url: str
    token_url: str
    keys: tuple[jwt.PyJWK, ...]
    at: float


class Provider:
    """The identity provider.

    Args:
        settings: Settings of the provider.
        prefix: Prefix of the API's paths, below which the provider sends browsers back.
        clock: Measures how long its keys count.
    """

    def __init__(self, settings: OidcSettings, prefix: str, clock: Clock) -> None:
        self._settings = settings
        self._callback_url = settings.public_url.rstrip("/") + prefix + CALLBACK
        self._clock = clock
        self._found: _Found | None = None
        self._finding = asyncio.Lock()
        self._failed_at = -math.inf

    async def login_url(self, seed: str) -> str:
        """Return the address that a browser is sent to for a login.

        Raises:
            OperationalError: The provider does not answer.
        """
        found = await self._find()
        challenge = hashlib.sha256(derived(seed, "verifier").encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": self._callback_url,
            "scope": self._settings.scope,
            "state": derived(seed, "state"),
            "nonce": derived(seed, "nonce"),
            "code_challenge": base64.urlsafe_b64encode(challenge).decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        separator = "&" if urlsplit(found.authorization_url).query else "?"
        return f"{found.authorization_url}{separator}{urlencode(query)}"

    async def username(self, seed: str, code: str) -> str:
        """Return the user who has logged in: the name by which the API has an account.

        Raises:
            LoginRefused: Code or token are not valid for this login.
            OperationalError: The provider does not answer.
        """
        found = await self._find()
        settings = self._settings
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._callback_url,
            "code_verifier": derived(seed, "verifier"),
        }
        headers = [
            (b"Content-Type", b"application/x-www-form-urlencoded"),
            (b"Accept", b"application/json"),
        ]
        if settings.client_secret is None:
            form["client_id"] = settings.client_id
        else:  # RFC 6749, 2.3.1
            secret = settings.client_secret.get_secret_value()
            pair = f"{quote(settings.client_id, safe='')}:{quote(secret, safe='')}"
            headers.append((b"Authorization", b"Basic " + base64.b64encode(pair.encode())))
        status, answer = await self._ask("POST", found.token_url, headers, urlencode(form).encode())
        if status in (400, 401, 403):
            raise LoginRefused("the identity provider does not take the code")
        if status != 200:
            raise OperationalError(f"the identity provider answers {status}")
        token = _json(answer).get("id_token")
        if not isinstance(token, str):
            raise LoginRefused("the identity provider gives no id_token")
        return self._name(await self._claims(token), derived(seed, "nonce"))

    def _name(self, claims: dict[str, Any], nonce: str) -> str:
        settings = self._settings
        if not isinstance(said := claims.get("nonce"), str) or not hmac.compare_digest(
            said.encode(errors="replace"), nonce.encode()
        ):
            raise LoginRefused("the id_token is of another login (nonce)")
        if claims.get("azp", settings.client_id) != settings.client_id:
            raise LoginRefused("the id_token is for another client (azp)")
        if settings.username_claim == "email" and claims.get("email_verified") is not True:
            raise LoginRefused("the address of mail is not verified (email_verified)")
        name = claims.get(settings.username_claim)
        if not isinstance(name, str) or not name:
            raise LoginRefused(f"the id_token has no {settings.username_claim}")
        return name

    async def _claims(self, token: str) -> dict[str, Any]:
        """Return the claims of a token, whose signature is by a key of the provider's."""
        settings = self._settings
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError) as exc:
            raise LoginRefused("the id_token is malformed") from exc
        keys = _fitting((await self._find()).keys, header)
        if not keys:  # it may have new ones
            keys = _fitting((await self._find(anew=True)).keys, header)
        for key in keys:
            try:
                claims: dict[str, Any] = jwt.decode(
                    token,
                    key.key,
                    algorithms=[header["alg"]],  # it is in ALGORITHMS, and the key is for it
                    options={
                        "require": ["iss", "sub", "aud", "exp", "iat"],
                        "enforce_minimum_key_length": True,
                    },
                    issuer=settings.issuer,
                    audience=settings.client_id,
                    leeway=LEEWAY_SECONDS,
                )
            except jwt.InvalidSignatureError:
                continue
            except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as exc:
                raise LoginRefused(f"the id_token does not count: {exc}") from exc
            return claims
        raise LoginRefused("the id_token is signed by no key of the identity provider")

    async def _find(self, *, anew: bool = False) -> _Found:
        """Return the provider's metadata, asked once an hour, or once for a new key."""
        async with self._finding:
            now = self._clock.monotonic()
            known = self._found
            age = KNOWN_SECONDS if known is None else now - known.at
            if known is not None and age < (LEEWAY_SECONDS if anew else KNOWN_SECONDS):
                return known
            if now - self._failed_at < RETRY_SECONDS:
                raise OperationalError("the identity provider did not answer: try again")
            try:
                self._found = await self._ask_of_itself(now)
            except OperationalError:
                self._failed_at = now
                raise
            return self._found

    async def _ask_of_itself(self, now: float) -> _Found:
        issuer = self._settings.issuer
        said = await self._get(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if said.get("issuer") != issuer:
            raise OperationalError("the identity provider says that it is another issuer")
        urls = [said.get(f"{name}_endpoint") for name in ("authorization", "token")]
        authorization_url, token_url = (_checked(url) for url in urls)
        members = (await self._get(_checked(said.get("jwks_uri")))).get("keys")
        keys = tuple(filter(None, map(_key, members if isinstance(members, list) else [])))
        return _Found(authorization_url, token_url, keys, now)

    async def _get(self, url: str) -> dict[str, Any]:
        status, answer = await self._ask("GET", url, [(b"Accept", b"application/json")], None)
        if status != 200:
            raise OperationalError(f"the identity provider answers {status}")
        return _json(answer)

    async def _ask(
        self, method: str, url: str, headers: list[tuple[bytes, bytes]], body: bytes | None
    ) -> tuple[int, bytes]:
        settings = self._settings
        seconds = settings.timeout_seconds
        host = (b"Host", urlsplit(url).netloc.encode())
        try:
            async with (
                asyncio.timeout(seconds),
                # Logins are rare: none of its connections is worth keeping.
                httpcore.AsyncConnectionPool(
                    ssl_context=make_ssl_context(settings.ca_certificates),
                    retries=0,
                    network_backend=CheckedBackend(
                        "oidc.allowed_networks", settings.allowed_networks
                    ),
                ) as pool,
                pool.stream(method, url, headers=[host, *headers], content=body) as response,
            ):
                answer = bytearray()
                async for chunk in response.aiter_stream():
                    answer += chunk
                    if len(answer) > MAX_ANSWER_BYTES:
                        raise OperationalError("the identity provider's answer is too large")
                return response.status, bytes(answer)
        except TimeoutError as exc:
            raise OperationalError(
                f"the identity provider does not answer within {seconds:g} s"
            ) from exc
        except AddressRefused as exc:
            raise OperationalError(str(exc)) from exc
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as exc:
            raise OperationalError(f"the identity provider does not answer: {exc!r}") from exc


def derived(seed: str, purpose: str) -> str:
    """Return a login's value for a purpose; the seed does not follow from it."""
    digest = hmac.digest(seed.encode(), purpose.encode(), "sha256")
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _json(answer: bytes) -> dict[str, Any]:
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError) as exc:
        raise OperationalError("the identity provider's answer is not JSON") from exc
    if not isinstance(found, dict):
        raise OperationalError("the identity provider's answer is no JSON object")
    return found


def _checked(url: object) -> str:
    """Return an address that the provider says; requests to it must be unreadable to others."""
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or not (
        parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
    ):
        raise OperationalError("the identity provider names an address that is not https")
    return str(url)


def _key(member: object) -> jwt.PyJWK | None:
    """Return a key of a set; None: not one for signatures of tokens (RFC 7517, 5)."""
    if not isinstance(member, dict) or "d" in member or member.get("use", "sig") != "sig":
        return None
    try:
        key = jwt.PyJWK(member)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError):
        return None
    return key if key.algorithm_name in ALGORITHMS else None


def _fitting(keys: tuple[jwt.PyJWK, ...], header: dict[str, Any]) -> list[jwt.PyJWK]:
    """Return the keys that may have signed a token."""
    kid = header.get("kid")
    return [
        key
        for key in keys
        if key.algorithm_name == header.get("alg") and (kid is None or key.key_id == kid)
    ]
