"""Logging in at an identity provider: a real one, which listens and signs."""

import base64
import hashlib
import json
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import RSAAlgorithm

from api.access.provider import RETRY_SECONDS
from api.settings import OidcSettings
from tests.api.conftest import Api, memory_api
from tests.api.test_access import PASSWORD, code_of, log_in
from tests.api.test_audit import rows

PUBLIC_URL = "https://mqlake.example"
CALLBACK = f"{PUBLIC_URL}/api/v1/login/oidc/callback"
CLIENT = "mqlake"
SECRET = "s3cret:&%"


@dataclass
class Issuer:
    """An identity provider: gives codes out, and tokens for them as RFC 6749 and 7636 have it."""

    url: str = ""
    key: Any = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))
    kid: str = "one"
    claims: dict[str, Any] = field(default_factory=dict)
    algorithm: str = "RS256"
    signing: Any = None
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    described: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    members: list[dict[str, Any]] | None = None

    def get(self, path: str) -> Any:
        self.asked.append(path)
        if path == "/.well-known/openid-configuration":
            endpoints = {"authorization_endpoint": "/authorize", "token_endpoint": "/token"}
            urls = {name: self.url + path for name, path in endpoints.items()}
            return {"issuer": self.url, "jwks_uri": f"{self.url}/keys", **urls, **self.described}
        if path == "/keys":
            public = json.loads(RSAAlgorithm.to_jwk(self.key.public_key()))
            own = [{**public, "kid": self.kid, "use": "sig", "alg": "RS256"}]
            return {"keys": own if self.members is None else self.members}
        return None

    def log_in(self, location: str) -> dict[str, str]:
        """Be the page to which a browser was sent; return the parameters it comes back with."""
        url, _, query = location.partition("?")
        assert url == f"{self.url}/authorize"
        asked = {name: values[0] for name, values in parse_qs(query).items()}
        assert asked["response_type"] == "code"
        assert (asked["client_id"], asked["redirect_uri"]) == (CLIENT, CALLBACK)
        assert asked["code_challenge_method"] == "S256"
        code = f"code-{len(self.codes)}"
        self.codes[code] = asked
        return {"code": code, "state": asked["state"]}

    def token(self, form: dict[str, str], authorization: str) -> Any:
        self.asked.append("/token")
        pair = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        challenge = hashlib.sha256(form["code_verifier"].encode()).digest()
        asked = self.codes.pop(form["code"], None)  # it counts once
        if (
            asked is None
            or pair != f"{CLIENT}:s3cret%3A%26%25"
            or form["redirect_uri"] != CALLBACK
            or base64.urlsafe_b64encode(challenge).decode().rstrip("=") != asked["code_challenge"]
        ):
            return None
        now = int(time.time())
        claims = {
            "iss": self.url,
            "sub": "ann",
            "aud": CLIENT,
            "exp": now + 60,
            "iat": now,
            "nonce": asked["nonce"],
            **self.claims,
        }
        claims = {name: value for name, value in claims.items() if value is not None}
        headers = {"kid": self.kid} if self.kid else {}
        signing = self.key if self.signing is None else self.signing
        with warnings.catch_warnings(action="ignore"):  # some keys are small
            token = jwt.encode(claims, signing, self.algorithm, headers)
        return {"access_token": "a", "token_type": "Bearer", "id_token": token}


@contextmanager
def served(issuer: Issuer) -> Iterator[Issuer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(issuer.get(self.path))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            self._answer(issuer.token(form, self.headers.get("Authorization", "")))

        def _answer(self, found: Any) -> None:
            body = json.dumps(found or {"error": "invalid_grant"}).encode()
            self.send_response(200 if found else 400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    issuer.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with served(Issuer()) as made:
        yield made


@contextmanager
def api_of(folder: Path, issuer: Issuer, **more: Any) -> Iterator[Api]:
    oidc = {
        "name": "Plant",
        "issuer": issuer.url,
        "client_id": CLIENT,
        "client_secret": SECRET,
        "public_url": PUBLIC_URL,
        "allowed_networks": ["127.0.0.0/8"],
        **more,
    }
    with memory_api(folder, oidc=oidc) as api:
        body = {"name": "ann", "role": "editor", "topic_filters": ["lab/#"]}
        assert api.request("POST", "/accounts", json=body).status_code == 201
        yield api


@pytest.fixture
def api(tmp_path: Path, issuer: Issuer) -> Iterator[Api]:
    with api_of(tmp_path, issuer) as made:
        yield made


def begin(api: Api) -> tuple[str, dict[str, str]]:
    """Begin a login; return where the browser is sent, and its cookie."""
    answer = api.request("GET", "/login/oidc", {})
    assert answer.status_code == 303, answer.text
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Path=/api/v1/login/oidc" in cookie
    return answer.headers["location"], {"Cookie": cookie.partition(";")[0]}


def end(api: Api, cookie: dict[str, str], **parameters: str) -> httpx.Response:
    return api.request("GET", "/login/oidc/callback", cookie, params=parameters)


def whole_login(api: Api, issuer: Issuer) -> httpx.Response:
    location, cookie = begin(api)
    return end(api, cookie, **issuer.log_in(location))


def test_a_login_at_the_provider_opens_the_session_of_the_account(api: Api, issuer: Issuer) -> None:
    assert api.request("GET", "/login", {}).json() == {"oidc": "Plant"}
    answer = whole_login(api, issuer)
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/")
    cookies = answer.headers.get_list("set-cookie")
    (session,) = [one for one in cookies if one.startswith("mqlake_session=")]
    assert "SameSite=strict" in session
    assert any(one.startswith('mqlake_login=""') for one in cookies)
    headers = {"Cookie": session.partition(";")[0]}
    found = api.request("GET", "/session", headers).json()
    assert (found["name"], found["role"], found["kind"]) == ("ann", "editor", "account")
    assert found["topic_filters"] == ["lab/#"]
    row = rows(api)[-1]
    assert (row["caller"], row["credential"], row["status"]) == ("ann", "oidc", 303)
    assert row["target"] == "/login/oidc/callback", "a code is in no row"
    api.request("DELETE", "/accounts/ann")
    assert api.request("GET", "/session", headers).status_code == 401


def test_an_account_without_a_password_has_none(api: Api) -> None:
    for password in ("", "\0", PASSWORD):
        assert code_of(log_in(api, username="ann", password=password))[0] == 401
    api.request("PUT", "/accounts/ann", json={"password": PASSWORD})
    assert log_in(api).status_code == 200


def test_a_code_counts_once_and_for_the_browser_that_began(api: Api, issuer: Issuer) -> None:
    location, cookie = begin(api)
    back = issuer.log_in(location)
    _, other = begin(api)
    for headers, parameters in (
        (other, back),
        ({}, back),
        (cookie, {**back, "state": "x"}),
        (cookie, {**back, "state": ""}),
        (cookie, {"code": back["code"]}),
        (cookie, {"state": back["state"]}),
        (cookie, {"state": back["state"], "error": "access_denied"}),
        (cookie, {**back, "code": "made up"}),
    ):
        assert code_of(end(api, headers, **parameters)) == (401, "wrong_credentials")
    assert end(api, cookie, **back).status_code == 303
    assert end(api, cookie, **back).status_code == 401


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"nonce": "other"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"nonce": ["a"]}, "nonce"),
        ({"aud": "other"}, "Audience"),
        ({"aud": None}, "aud"),
        ({"aud": [CLIENT, "other"], "azp": "other"}, "azp"),
        ({"iss": "https://other.example"}, "issuer"),
        ({"iss": None}, "iss"),
        ({"exp": 1}, "expired"),
        ({"exp": None}, "exp"),
        ({"iat": None}, "iat"),
        ({"iat": 2**33}, "iat"),
        ({"nbf": 2**33}, "nbf"),
        ({"sub": "nobody"}, "no account 'nobody'"),
        ({"sub": "api-token"}, "no account"),
        ({"sub": "key:1"}, "no account"),
        ({"sub": ""}, "no sub"),
    ],
)
def test_tokens_that_say_something_else_are_refused(
    api: Api, issuer: Issuer, claims: dict[str, Any], words: str
) -> None:
    issuer.claims = claims
    answer = whole_login(api, issuer)
    assert code_of(answer) == (401, "wrong_credentials")
    assert words in answer.json()["detail"]
    assert "mqlake_session" not in str(answer.headers)
    assert rows(api)[-1]["status"] == 401


def test_tokens_that_somebody_else_has_signed_are_refused(api: Api, issuer: Issuer) -> None:
    public = issuer.key.public_key()
    other = rsa.generate_private_key(65537, 2048)
    for algorithm, signing, kid in (
        ("RS256", other, "one"),
        ("RS256", other, "unknown"),
        ("RS384", issuer.key, "one"),  # not what the key is for
        ("none", "", "one"),
        ("HS256", str(public.public_numbers().n).encode(), "one"),  # what everybody knows
        ("ES256", ec.generate_private_key(ec.SECP256R1()), "one"),
    ):
        issuer.algorithm, issuer.signing, issuer.kid = algorithm, signing, kid
        answer = whole_login(api, issuer)
        assert code_of(answer) == (401, "wrong_credentials"), algorithm
        assert "signed by no key" in answer.json()["detail"]


def test_secrets_and_small_keys_of_a_key_set_count_for_nothing(
    tmp_path: Path, issuer: Issuer
) -> None:
    small = rsa.generate_private_key(65537, 1024)
    secret = base64.urlsafe_b64encode(b"k" * 32).decode().rstrip("=")
    shared = {"kty": "oct", "k": secret, "kid": "one", "alg": "HS256"}
    weak = json.loads(RSAAlgorithm.to_jwk(small.public_key())) | {"kid": "one", "alg": "RS256"}
    private = json.loads(RSAAlgorithm.to_jwk(issuer.key)) | {"kid": "one", "alg": "RS256"}
    for algorithm, signing, member in (
        ("HS256", b"k" * 32, shared),
        ("RS256", small, weak),
        ("RS256", issuer.key, private),
    ):
        issuer.algorithm, issuer.signing, issuer.members = algorithm, signing, [member]
        with api_of(tmp_path, issuer) as api:
            assert whole_login(api, issuer).status_code == 401


def test_new_keys_are_asked_for_but_not_for_each_token(api: Api, issuer: Issuer) -> None:
    assert whole_login(api, issuer).status_code == 303
    issuer.key, issuer.kid = rsa.generate_private_key(65537, 2048), "two"
    assert whole_login(api, issuer).status_code == 401, "too soon"
    api.clock.advance(31.0)
    assert whole_login(api, issuer).status_code == 303
    issuer.key, issuer.kid = rsa.generate_private_key(65537, 2048), "three"
    api.clock.advance(31.0)
    assert whole_login(api, issuer).status_code == 303
    before = issuer.asked.count("/keys")
    issuer.kid = "none of them"
    for _ in range(3):
        issuer.signing = rsa.generate_private_key(65537, 2048)
        assert whole_login(api, issuer).status_code == 401
    assert issuer.asked.count("/keys") == before


def test_verified_addresses_of_mail_may_be_names(tmp_path: Path, issuer: Issuer) -> None:
    with api_of(tmp_path, issuer, username_claim="email") as api:
        body = {"name": "ann@example.org", "role": "viewer"}
        assert api.request("POST", "/accounts", json=body).status_code == 201
        for verified, status in ((None, 401), (False, 401), ("true", 401), (True, 303)):
            issuer.claims = {"email": "ann@example.org", "email_verified": verified}
            assert whole_login(api, issuer).status_code == status


@pytest.mark.parametrize(
    "described",
    [
        {"issuer": "https://other.example"},
        {"authorization_endpoint": "http://login.example/authorize"},
        {"token_endpoint": "ftp://127.0.0.1/"},
        {"token_endpoint": 7},
        {"jwks_uri": None},
        {"jwks_uri": "http://192.0.2.1/keys"},
        {"padding": "x" * 300_000},
    ],
)
def test_a_provider_that_describes_itself_wrongly_is_as_one_that_is_away(
    api: Api, issuer: Issuer, described: dict[str, Any]
) -> None:
    issuer.described = described
    assert code_of(api.request("GET", "/login/oidc", {})) == (503, "unavailable")


def test_a_provider_that_is_away_is_not_asked_all_the_time(tmp_path: Path, issuer: Issuer) -> None:
    with api_of(tmp_path, issuer) as api:
        issuer.described = {"issuer": "https://other.example"}
        for _ in range(3):
            assert api.request("GET", "/login/oidc", {}).status_code == 503
        assert len(issuer.asked) == 1
        issuer.described = {}
        api.clock.advance(RETRY_SECONDS)
        begin(api)


def test_internal_addresses_are_not_asked_unless_they_are_allowed(
    tmp_path: Path, issuer: Issuer
) -> None:
    with api_of(tmp_path, issuer, allowed_networks=[]) as api:
        answer = api.request("GET", "/login/oidc", {})
    assert code_of(answer) == (503, "unavailable")
    assert "oidc.allowed_networks" in answer.json()["detail"]
    assert issuer.asked == []


def test_who_guesses_codes_has_to_wait(api: Api, issuer: Issuer) -> None:
    _, cookie = begin(api)
    statuses = {end(api, cookie, code=f"{n}", state="x").status_code for n in range(20)}
    assert statuses == {401, 429}


def test_without_a_provider_there_is_no_such_login(tmp_path: Path) -> None:
    with memory_api(tmp_path) as api:
        assert api.request("GET", "/login", {}).json() == {"oidc": None}
        for path in ("/login/oidc", "/login/oidc/callback"):
            assert code_of(api.request("GET", path, {})) == (404, "not_found")


def test_a_provider_goes_by_tls() -> None:
    values: dict[str, Any] = {"client_id": "a", "public_url": PUBLIC_URL}
    with pytest.raises(ValueError, match="expected https"):
        OidcSettings(issuer="http://login.example", **values)
    assert urlsplit(OidcSettings(issuer="https://login.example/r", **values).issuer).path == "/r"
