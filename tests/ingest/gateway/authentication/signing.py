"""Keys and tokens for tests; each key is made once."""

import json
import time
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

SECRET = "a secret of tests that is long enough for each of the three, so 64 bytes"
ISSUER, AUDIENCE = "https://id.example.org", "mqtt"

_CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}


@cache
def private_key(algorithm: str, number: int = 0, *, bits: int = 2048) -> Any:
    del number
    if algorithm.startswith("ES"):
        return ec.generate_private_key(_CURVES[algorithm])
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


def public_pem(key: Any) -> bytes:
    pem: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return pem


def jwk(key: Any, **more: Any) -> dict[str, Any]:
    kind = ECAlgorithm if isinstance(key, ec.EllipticCurvePrivateKey) else RSAAlgorithm
    found: dict[str, Any] = json.loads(kind.to_jwk(key.public_key()))
    found.pop("key_ops", None)
    return found | more


def key_set(*members: dict[str, Any]) -> bytes:
    return json.dumps({"keys": members}).encode()


def claims(**more: Any) -> dict[str, Any]:
    """Return claims that are in order; one that is None is left out."""
    now = time.time()
    found = {"sub": "pump-7", "iss": ISSUER, "aud": AUDIENCE, "exp": now + 600, "iat": now, **more}
    return {name: value for name, value in found.items() if value is not None}


def token(
    key: Any = SECRET, algorithm: str = "HS256", kid: str | None = None, **more: Any
) -> bytes:
    headers = None if kid is None else {"kid": kid}
    return jwt.encode(claims(**more), key, algorithm, headers).encode()
