"""Tokens: which are taken, and that no other is, whatever it says of itself."""

import base64
import hashlib
import hmac
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.gateway.authentication.outcomes import Accepted
from ingest.gateway.authentication.tokens import (
    MAX_KEYS,
    MAX_TOKEN_BYTES,
    KeysUnusable,
    TokenRefused,
    Tokens,
    VerificationKey,
    read_key_set,
    read_public_keys,
    read_secrets,
)
from ingest.gateway.settings.authenticators import JwtAuthenticatorSettings
from tests.ingest.gateway.authentication.signing import (
    AUDIENCE,
    ISSUER,
    SECRET,
    claims,
    jwk,
    key_set,
    private_key,
    public_pem,
    token,
)

ASYMMETRIC = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"]
SYMMETRIC = ["HS256", "HS384", "HS512"]
LATER = 99_999_999_999
"""A time that does not come while tests run."""


def reader(*algorithms: str, **more: Any) -> Tokens:
    place: dict[str, Any] = {"public_key_file": Path("keys.pem")}
    if algorithms[0].startswith("HS"):
        place = {"secret_file": Path("secrets")}
    known = {"algorithms": algorithms, "issuer": ISSUER, "audience": AUDIENCE, **place, **more}
    return Tokens(JwtAuthenticatorSettings(kind="jwt", **known))


def secrets_of(*texts: str) -> tuple[VerificationKey, ...]:
    return read_secrets("\n".join(texts).encode(), ["HS256"])


def login(tokens: Tokens, password: bytes, keys: tuple[VerificationKey, ...]) -> Accepted:
    header = tokens.header(password)
    assert header is not None
    return tokens.verify(password, header, keys)


def encoded(part: Any) -> bytes:
    text = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=")


def signed(header: Any, payload: Any, secret: bytes = SECRET.encode()) -> bytes:
    """Sign by hand what no library would."""
    body = encoded(header) + b"." + encoded(payload)
    return body + b"." + encoded(hmac.digest(secret, body, "sha256"))


@pytest.mark.parametrize("algorithm", SYMMETRIC)
def test_tokens_by_secrets_are_taken(algorithm: str) -> None:
    keys = read_secrets(
        b"another secret that is long enough, for a while: 64 bytes, and more.\n\n"
        + SECRET.encode()
        + b"\n",
        [algorithm],
    )
    assert login(reader(algorithm), token(algorithm=algorithm), keys).username == "pump-7"


@pytest.mark.parametrize("algorithm", ASYMMETRIC)
def test_tokens_by_private_keys_are_taken(algorithm: str) -> None:
    key = private_key(algorithm if algorithm.startswith("ES") else "RS")
    password = token(key, algorithm, kid="1")
    for keys in (read_public_keys(public_pem(key)), read_key_set(key_set(jwk(key, kid="1")))):
        assert login(reader(algorithm), password, keys).username == "pump-7"


def test_a_secret_may_be_base64() -> None:
    secret = bytes(range(64))
    keys = secrets_of("base64:" + base64.b64encode(secret).decode())
    assert login(reader("HS256"), token(secret), keys).username == "pump-7"


@pytest.mark.parametrize(
    "password", [b"", b"secret", b"a.b", b"a.b.c", b"a.b.c.d", b"\xff.\xff.\xff", b"e30.e30", b".."]
)
def test_what_is_no_token_is_passed_on(password: bytes) -> None:
    assert reader("HS256").header(password) is None


@pytest.mark.parametrize("issuer", ["https://other.example", None, 7, ["https://id.example.org"]])
def test_a_token_of_another_issuer_is_passed_on(issuer: Any) -> None:
    payload = claims() | {"iss": issuer}
    assert reader("HS256").header(signed({"alg": "HS256"}, payload)) is None


@pytest.mark.parametrize(
    "algorithm", ["none", "None", "", "HS384", "RS256", "hs256", None, 7, ["HS256"], {"HS256": 1}]
)
def test_the_algorithm_has_to_be_one_of_the_settings(algorithm: Any) -> None:
    header = {"typ": "JWT"} if algorithm is None else {"alg": algorithm}
    with pytest.raises(TokenRefused, match="not in algorithms"):
        reader("HS256").header(signed(header, claims()))


def test_no_signature_is_none() -> None:
    body = encoded({"alg": "HS256"}) + b"." + encoded(claims()) + b"."
    with pytest.raises(TokenRefused, match="by none of the keys"):
        login(reader("HS256"), body, secrets_of(SECRET))


def test_a_public_key_is_no_secret() -> None:
    pem = public_pem(private_key("RS"))
    forged = signed({"alg": "HS256"}, claims(), pem)
    with pytest.raises(TokenRefused, match="not in algorithms"):
        reader("RS256").header(forged)
    header = reader("HS256").header(forged)
    assert header is not None
    with pytest.raises(TokenRefused, match="by none of the keys"):
        reader("RS256").verify(forged, header, read_public_keys(pem))
    with pytest.raises(KeysUnusable):
        read_secrets(pem, ["HS256"])


def test_a_key_is_used_with_its_own_algorithm_alone() -> None:
    key = private_key("RS")
    keys = read_key_set(key_set(jwk(key, alg="RS512")))
    assert login(reader("RS256", "RS512"), token(key, "RS512"), keys).username == "pump-7"
    with pytest.raises(TokenRefused, match="by none of the keys"):
        login(reader("RS256", "RS512"), token(key, "RS256"), keys)


def test_keys_that_a_token_brings_are_nothing() -> None:
    mine = private_key("RS", 1)
    for more in ({"jwk": jwk(mine)}, {"jku": "https://evil.example"}, {"x5u": "https://evil"}):
        import jwt

        password = jwt.encode(claims(), mine, "RS256", more).encode()
        with pytest.raises(TokenRefused, match="by none of the keys"):
            login(reader("RS256"), password, read_public_keys(public_pem(private_key("RS"))))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"exp": None}, "no claim exp"),
        ({"exp": time.time() - 60}, "its time is over"),
        ({"exp": "soon"}, "it is malformed"),
        ({"exp": "99999999999"}, "exp is no time"),
        ({"exp": 10**400}, "exp is no time|malformed"),
        ({"exp": True}, "over|exp is no time"),
        ({"exp": float("inf")}, "malformed"),
        ({"exp": float("nan")}, "malformed"),
        ({"exp": []}, "malformed"),
        ({"nbf": LATER}, "has not come"),
        ({"nbf": "x"}, "malformed"),
        ({"iat": LATER}, "has not come"),
        ({"aud": "other"}, "another audience"),
        ({"aud": None}, "no claim aud"),
        ({"aud": ["a", "b"]}, "another audience"),
        ({"aud": {"mqtt": 1}}, "another audience"),
        ({"sub": None}, "claim sub is no text"),
        ({"sub": 7}, "malformed"),
        ({"sub": ""}, "no user name"),
        ({"sub": "a\0b"}, "no user name"),
        ({"sub": "\ud800"}, "no user name"),
    ],
)
def test_claims_have_to_be_in_order(more: dict[str, Any], reason: str) -> None:
    payload = {name: one for name, one in (claims() | more).items() if one is not None}
    with pytest.raises(TokenRefused, match=reason):
        login(reader("HS256"), signed({"alg": "HS256"}, payload), secrets_of(SECRET))


def test_an_audience_nobody_asked_for_is_refused() -> None:
    with pytest.raises(TokenRefused, match="another audience"):
        login(reader("HS256", audience=None), token(), secrets_of(SECRET))
    assert login(reader("HS256", audience=None), token(aud=None), secrets_of(SECRET))


@pytest.mark.parametrize(
    "header",
    [
        {"crit": ["exp"]},
        {"crit": []},
        {"crit": "b64"},
        {"b64": False},
        {"b64": False, "crit": ["b64"]},
        {"kid": 7},
        {"kid": ["1"]},
    ],
)
def test_headers_that_are_not_understood_are_refused(header: dict[str, Any]) -> None:
    password = signed({"alg": "HS256", **header}, claims())
    try:
        found = reader("HS256").header(password)
    except TokenRefused:
        return
    if found is not None:
        with pytest.raises(TokenRefused):
            reader("HS256").verify(password, found, secrets_of(SECRET))


def test_a_token_ends_its_connection_with_the_leeway() -> None:
    end = int(time.time()) + 60
    found = login(reader("HS256", leeway_seconds=10), token(exp=end), secrets_of(SECRET))
    assert found.ends_at == end + 10
    late = token(exp=time.time() - 5)
    assert login(reader("HS256", leeway_seconds=10), late, secrets_of(SECRET))


def test_a_token_that_is_too_long_is_refused() -> None:
    with pytest.raises(TokenRefused, match="more than 16384 bytes"):
        reader("HS256").header(token(more="x" * MAX_TOKEN_BYTES))


def test_claims_say_who_the_client_is_and_what_it_may_do() -> None:
    tokens = reader(
        "HS256",
        username_claim="device.name",
        roles_claim="realm_access.roles",
        rights_claim="https://example.org/rights",
        attributes_claim="plant",
    )
    rights: dict[str, Any] = {
        "https://example.org/rights": [{"actions": ["publish"], "topics": ["a/%c/#"]}]
    }
    password = token(
        device={"name": "Rene\u0301"},
        realm_access={"roles": ["pumps", "all"]},
        plant={"site": "north"},
        **rights,
    )
    found = login(tokens, password, secrets_of(SECRET))
    assert found.username == "Ren\u00e9"
    assert found.grants.roles == {"pumps", "all"}
    assert found.grants.attributes == {"site": "north"}
    assert [rule.topics for rule in found.grants.rules] == [("a/%c/#",)]


@pytest.mark.parametrize(
    "rights", ["#", [{"actions": ["publish"]}], [{"effect": "deny", "actions": ["connect"]}], [7]]
)
def test_rules_that_are_none_let_nobody_in(rights: Any) -> None:
    with pytest.raises(TokenRefused, match="rules or attributes are none"):
        login(reader("HS256", rights_claim="rights"), token(rights=rights), secrets_of(SECRET))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "0 usable keys"),
        (b"short", "line 1: a secret of 5 bytes, HS256 needs 32 at least"),
        (b"\nbase64:AAAA", "line 2: a secret of 3 bytes"),
        (b"base64:!", "line 1 is not base64"),
        (b"\n".join([b"x" * 32] * (MAX_KEYS + 1)), "33 usable keys, expected 1 to 32"),
    ],
)
def test_secrets_that_cannot_be_used(text: bytes, reason: str) -> None:
    with pytest.raises(KeysUnusable, match=reason):
        read_secrets(text, ["HS256"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "0 usable keys"),
        (b"x" * 100, "0 usable keys"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", "PEM block 1 is no public"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", "PEM block 1 is no"),
        (public_pem(private_key("RS", bits=1024)), "RSA with 2048 bits"),
    ],
)
def test_public_keys_that_cannot_be_used(text: bytes, reason: str) -> None:
    with pytest.raises(KeysUnusable, match=reason):
        read_public_keys(text)


def test_a_key_set_leaves_out_what_verifies_no_token() -> None:
    key = jwk(private_key("RS"))
    others: list[Any] = [
        {"kty": "oct", "k": base64.urlsafe_b64encode(SECRET.encode()).decode()},
        {**key, "use": "enc"},
        {**key, "key_ops": ["encrypt"]},
        {**key, "key_ops": 7},
        {**key, "kid": 7},
        {**key, "alg": "HS256"},
        {**key, "alg": ["RS256"]},
        {**key, "d": "AQAB"},
        {**key, "n": "!"},
        {**key, "n": None},
        {**key, "e": "AA"},
        {"kty": "RSA"},
        {"kty": ["RSA"]},
        jwk(private_key("RS", bits=1024)),
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": "EC", "crv": "secp256k1", "x": "A" * 43, "y": "A" * 43},
        "RSA",
        None,
    ]
    found = read_key_set(key_set(*others, {**key, "kid": "1"}))
    assert [one.kid for one in found] == ["1"]
    with pytest.raises(KeysUnusable, match="0 usable keys"):
        read_key_set(key_set(*others))


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"keys":{}}', b"\xff", b"[" * 100_000, b'{"keys":[]}']
)
def test_what_is_no_key_set(text: bytes) -> None:
    with pytest.raises(KeysUnusable):
        read_key_set(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
TOKENS = reader("HS256", roles_claim="roles", rights_claim="rights")
KEYS = secrets_of(SECRET)


def outcome(password: bytes, keys: tuple[VerificationKey, ...] = KEYS) -> Accepted | None:
    try:
        header = TOKENS.header(password)
        return None if header is None else TOKENS.verify(password, header, keys)
    except TokenRefused:
        return None


@given(st.binary(max_size=300))
def test_no_bytes_are_a_token(password: bytes) -> None:
    assert outcome(password) is None


@given(json_values, json_values)
def test_no_forged_parts_are_a_token(header: Any, payload: Any) -> None:
    for head in (header, {"alg": "HS256", "kid": "1"}):
        body = encoded(head) + b"." + encoded(payload) + b"."
        assert outcome(body + encoded(hashlib.sha256(body).digest())) is None


@given(
    st.dictionaries(
        st.sampled_from(["sub", "exp", "nbf", "iat", "jti", "aud", "roles", "rights"]), json_values
    )
)
def test_signed_claims_of_all_kinds_make_nothing_fail(more: dict[str, Any]) -> None:
    found = outcome(signed({"alg": "HS256"}, claims() | more))
    assert found is None or (found.username and found.ends_at)


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_no_change_of_one_byte_is_let_in(position: int, change: int) -> None:
    password = bytearray(signed({"alg": "HS256"}, claims()))
    password[position % len(password)] ^= change
    assert outcome(bytes(password)) is None


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["kty", "n", "e", "crv", "x", "y", "use", "alg", "kid", "key_ops"]),
            json_values | st.sampled_from(["RSA", "EC", "P-256", "sig", "AQAB", "A" * 43, "RS256"]),
        ),
        max_size=4,
    )
)
def test_no_key_set_makes_it_fail(members: list[dict[str, Any]]) -> None:
    with suppress(KeysUnusable):
        read_key_set(key_set(*members))
