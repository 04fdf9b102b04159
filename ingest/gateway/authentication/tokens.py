"""Tokens that name their bearer (JWT, RFC 7519): read, and verified by keys that are given.

No socket, no file. A token's header chooses among the options that the settings allow, never more:
its `alg` has to be listed, and a key is used with the algorithms that it is for (RFC 8725).
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, urlsafe_b64decode
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jwt
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from ingest.gateway.authentication.outcomes import Accepted
from mqlake.errors import MqlakeError
from mqlake.rights.grants import GrantsError, read_grants
from mqlake.security.saslprep import UnpreparableText, prepare

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ingest.gateway.settings.authenticators import JwtAuthenticatorSettings

MAX_TOKEN_BYTES: Final = 16 * 1024
MAX_KEYS: Final = 32
"""Most keys of one set: each may be tried for a token that does not say by which it is signed."""
MIN_RSA_BITS: Final = 2048
"""RFC 7518, 3.3 and 3.5."""

_SHAPE: Final = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_PEM: Final = re.compile(rb"-----BEGIN ([A-Z ]+)-----.+?-----END \1-----", re.DOTALL)
_HMAC: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
"""Algorithm -> bytes that a secret needs at least (RFC 7518, 3.2)."""
_RSA: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


class KeysUnusable(MqlakeError):  # noqa: N818 - it names the unusable thing
    """Keys cannot be used; says which and why, and nothing of a secret."""


class TokenRefused(MqlakeError):  # noqa: N818 - it names the thing refused
    """A token does not prove its bearer; says why, and nothing that stands in it."""


class VerificationKey(NamedTuple):
    """By which signatures are verified."""

    key: Any
    """Secret, or public key."""
    algorithms: frozenset[str]
    """That it is for."""
    kid: str | None = None


class Header(NamedTuple):
    """A token's statements about its signature."""

    algorithm: str
    kid: str | None


class Tokens:
    """Reads tokens as the settings of an authenticator say.

    Args:
        settings: Which are taken, and the meaning of their claims.
    """

    def __init__(self, settings: JwtAuthenticatorSettings) -> None:
        self._settings = settings
        self._algorithms = frozenset[str](settings.algorithms)

    def header(self, password: bytes) -> Header | None:
        """Return a token's header; None: it is no token, or another issuer's.

        Raises:
            TokenRefused: It is one that is never taken.
        """
        if _SHAPE.fullmatch(password) is None:
            return None
        if len(password) > MAX_TOKEN_BYTES:
            raise TokenRefused(f"a token of more than {MAX_TOKEN_BYTES} bytes")
        head, body, _ = password.split(b".")
        found = _unverified(head)
        if found is None:
            return None
        issuer = self._settings.issuer
        if issuer is not None and (_unverified(body) or {}).get("iss") != issuer:
            return None
        algorithm, kid = found.get("alg"), found.get("kid")
        if type(algorithm) is not str or algorithm not in self._algorithms:
            raise TokenRefused("signed by an algorithm that is not in algorithms")
        if kid is not None and type(kid) is not str:
            raise TokenRefused("it is malformed")
        return Header(algorithm, kid)

    def verify(self, password: bytes, header: Header, keys: Sequence[VerificationKey]) -> Accepted:
        """Return the bearer of a token.

        Args:
            password: The token.
            header: Its own.
            keys: That may have signed it.

        Raises:
            TokenRefused: None of them has, its time is over or has not come, or its claims are
                not those that are wanted.
        """
        settings = self._settings
        for key in keys:
            if header.algorithm not in key.algorithms:
                continue
            try:
                claims = jwt.decode(
                    password,
                    key.key,
                    algorithms=[header.algorithm],  # it is in those of the settings
                    options={"require": ["exp"], "enforce_minimum_key_length": True},
                    issuer=settings.issuer,
                    audience=settings.audience,
                    leeway=settings.leeway_seconds,
                )
            except jwt.InvalidSignatureError:
                continue
            except jwt.MissingRequiredClaimError as exc:
                raise TokenRefused(f"it has no claim {exc.claim}") from exc
            except jwt.PyJWTError as exc:
                words = _REASONS.get(type(exc), "it is malformed")
                raise TokenRefused(words) from exc
            except (ValueError, TypeError, ArithmeticError, RecursionError) as exc:
                raise TokenRefused("it is malformed") from exc
            return self._accepted(claims)
        raise TokenRefused("its signature is by none of the keys")

    def _accepted(self, claims: dict[str, Any]) -> Accepted:
        settings = self._settings
        name = _claim(claims, settings.username_claim)
        if type(name) is not str:
            raise TokenRefused(f"its claim {settings.username_claim} is no text")
        try:
            username = prepare(name, "user name")
        except UnpreparableText as exc:
            raise TokenRefused(f"its claim {settings.username_claim} is no user name") from exc
        tenant = _claim(claims, settings.tenant_claim) if settings.tenant_claim else None
        if tenant is not None and (type(tenant) is not str or not tenant):
            raise TokenRefused(f"its claim {settings.tenant_claim} is no tenant")
        end = claims["exp"]
        if type(end) not in {int, float} or not -_FAR < end < _FAR:
            raise TokenRefused("its claim exp is no time")
        try:
            wanted = settings.roles_claim, settings.rights_claim, settings.attributes_claim
            grants = read_grants(*(_claim(claims, one) for one in wanted))
        except GrantsError as exc:
            raise TokenRefused("its roles, rules or attributes are none (docs/rights.md)") from exc
        token_id = claims.get("jti")
        if token_id is not None and type(token_id) is not str:
            raise TokenRefused("its claim jti is no text")
        return Accepted(
            username,
            ends_at=end + settings.leeway_seconds,
            grants=grants,
            tenant=tenant or "",
            token_id=token_id,
        )


_FAR: Final = 2.0**53
"""Seconds UTC; JSON can say more than a calendar knows."""

_REASONS: Final[dict[type[jwt.PyJWTError], str]] = {
    jwt.ExpiredSignatureError: "its time is over (exp)",
    jwt.ImmatureSignatureError: "its time has not come (nbf, iat)",
    jwt.InvalidAudienceError: "it is for another audience (aud)",
    jwt.InvalidIssuerError: "it is another issuer's (iss)",
}


def read_secrets(text: bytes, algorithms: Iterable[str]) -> tuple[VerificationKey, ...]:
    """Return the secrets of a file, one a line.

    Raises:
        KeysUnusable: There is none, or one is too short for an algorithm; says in which line.
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        secret = line.strip()
        if not secret:
            continue
        if secret.startswith(b"base64:"):
            try:
                secret = b64decode(secret.removeprefix(b"base64:"), validate=True)
            except ValueError as exc:
                raise KeysUnusable(f"line {number} is not base64") from exc
        for algorithm in algorithms:
            if len(secret) < _HMAC[algorithm]:
                raise KeysUnusable(
                    f"line {number}: a secret of {len(secret)} bytes, {algorithm} needs "
                    f"{_HMAC[algorithm]} at least"
                )
        found.append(VerificationKey(secret, frozenset(_HMAC)))
    return _bounded(found)


def read_public_keys(text: bytes) -> tuple[VerificationKey, ...]:
    """Return the public keys and those of the certificates of a PEM file.

    Raises:
        KeysUnusable: There is none, or one cannot be used.
    """
    found = []
    for number, block in enumerate(_PEM.finditer(text), 1):
        try:
            if block[1] == b"CERTIFICATE":
                key: Any = x509.load_pem_x509_certificate(block[0]).public_key()
            else:
                key = load_pem_public_key(block[0])
        except (ValueError, UnsupportedAlgorithm) as exc:
            raise KeysUnusable(f"PEM block {number} is no public key or certificate") from exc
        algorithms = _algorithms_of(key)
        if not algorithms:
            raise KeysUnusable(
                f"PEM block {number}: expected a key of RSA with {MIN_RSA_BITS} bits at least, or "
                "of the curves P-256, P-384 and P-521"
            )
        found.append(VerificationKey(key, algorithms))
    return _bounded(found)


def read_key_set(text: bytes) -> tuple[VerificationKey, ...]:
    """Return the keys of a JWKS that verify signatures; others in it are left out (RFC 7517, 5).

    Raises:
        KeysUnusable: It is none, or has no such key.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise KeysUnusable("the key set is not JSON") from exc
    members = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(members, list):
        raise KeysUnusable("the key set has no list 'keys'")
    return _bounded([key for one in members if (key := _key_of(one)) is not None])


def _key_of(member: Any) -> VerificationKey | None:
    """Return a key of a set; None: not one for signatures of tokens, or one that is none.

    Secrets are left out for any use: a secret that is published is none. So are private keys.
    """
    if not isinstance(member, dict) or "d" in member or member.get("use", "sig") != "sig":
        return None
    operations, kid = member.get("key_ops", ["verify"]), member.get("kid")
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    if kid is not None and type(kid) is not str:
        return None
    read = {"RSA": RSAAlgorithm.from_jwk, "EC": ECAlgorithm.from_jwk}.get(str(member.get("kty")))
    if read is None:
        return None
    try:
        key = read(member)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError):
        return None
    algorithms = _algorithms_of(key)
    if (named := member.get("alg")) is not None:
        algorithms = frozenset(one for one in algorithms if one == named)
    return VerificationKey(key, algorithms, kid) if algorithms else None


def _algorithms_of(key: object) -> frozenset[str]:
    if isinstance(key, RSAPublicKey):
        return _RSA if key.key_size >= MIN_RSA_BITS else frozenset()
    if isinstance(key, EllipticCurvePublicKey) and key.curve.name in _CURVES:
        return frozenset({_CURVES[key.curve.name]})
    return frozenset()


def _bounded(keys: list[VerificationKey]) -> tuple[VerificationKey, ...]:
    if not 0 < len(keys) <= MAX_KEYS:
        raise KeysUnusable(f"{len(keys)} usable keys, expected 1 to {MAX_KEYS}")
    return tuple(keys)


def _unverified(part: bytes) -> dict[str, Any] | None:
    """Return the object in a part of a token, or None. `verify` reads it again, more strictly."""
    try:
        found = json.loads(urlsafe_b64decode(part + b"=" * (-len(part) % 4)))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _claim(claims: dict[str, Any], name: str | None) -> object:
    """Return a claim, or the member of one that a name with dots says; None: it has none."""
    if name is None:
        return None
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found
