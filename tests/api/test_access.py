"""Who may come in: tokens, keys, accounts and sessions."""

import asyncio
import json
import re
import threading
from contextlib import suppress
from dataclasses import replace
from typing import Any

import httpx
import pytest
from starlette.requests import HTTPConnection

from api.access.authenticator import FAILURES_BURST, LOGINS_BURST, ApiAuthenticator
from api.access.callers import Callers
from api.access.logins import WrongCredentials
from api.access.passwords import CHECKS_AT_ONCE, MAX_WAITING, ApiPasswordChecks
from api.access.room import MAX_SESSIONS_OF_ONE
from api.app import create_app
from api.entrance.authentication import COOKIE, CSRF_HEADER, counting_login, identify
from api.log.following import Followed
from api.settings import ApiSettings
from api.web.problems import Problem
from api.wiring.services import make_services
from mqlake.errors import OperationalError
from mqlake.records.access import access_key
from mqlake.records.messages import ACCESS
from tests.api.conftest import REQUESTS, Api, operations
from tests.api.test_api import TOKEN

PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the OpenAPI document."""
    folder = tmp_path_factory.mktemp("document")
    (folder / "api-token").write_text(TOKEN)
    found: dict[str, Any] = create_app(
        make_services(ApiSettings(data_dir=folder, token_file=folder / "api-token"))
    ).openapi()
    return found


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def make_key(api: Api, role: str = "viewer", **more: Any) -> dict[str, Any]:
    answer = api.request("POST", "/keys", json={"role": role, "description": "a test", **more})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def make_account(api: Api, name: str = "ann", role: str = "editor") -> None:
    body = {"name": name, "role": role, "password": PASSWORD}
    answer = api.request("POST", "/accounts", json=body)
    assert answer.status_code == 201, answer.text


def log_in(api: Api, **body: str) -> httpx.Response:
    return api.request("POST", "/login", {}, json=body or {"username": "ann", "password": PASSWORD})


def session_of(api: Api, **body: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Log in; return the headers of a page of this session, and what the login said."""
    answer = log_in(api, **body)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    headers = {"Cookie": f"{COOKIE}={answer.cookies[COOKIE]}", CSRF_HEADER: said["csrf_token"]}
    return headers, said


def code_of(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["code"]


def test_a_key_lets_in_and_is_shown_once(api: Api) -> None:
    made = make_key(api)
    shown = api.get("/session") | {}
    assert (shown["name"], shown["role"], shown["kind"]) == ("api-token", "admin", "token")
    answer = api.request("GET", "/session", bearer(made["key"]))
    assert answer.json() == {
        "name": f"key:{made['id']}",
        "role": "viewer",
        "kind": "key",
        "csrf_token": None,
        "topic_filters": None,
        "tenants": None,
        "expires_at": None,
    }
    (listed,) = api.get("/keys")["items"]
    assert listed == api.get(f"/keys/{made['id']}")
    assert set(made) - set(listed) == {"key"}


def test_the_log_holds_no_secret(api: Api) -> None:
    made = make_key(api)
    make_account(api)
    headers, _ = session_of(api)
    secret = made["key"].split("_", 2)[2]
    cookie = headers["Cookie"].partition("=")[2].split("_", 2)[2]
    for record in api.log.records:
        for hidden in (secret, cookie, PASSWORD, headers[CSRF_HEADER]):
            assert hidden.encode() not in (record.value or b"")


@pytest.mark.parametrize("change", ["id", "secret", "prefix", "none"])
def test_a_key_that_is_not_quite_right_lets_nobody_in(api: Api, change: str) -> None:
    prefix, key_id, secret = make_key(api)["key"].split("_", 2)
    wrong = {
        "id": f"{prefix}_{'0' * 12}_{secret}",
        "secret": f"{prefix}_{key_id}_{secret[:-1]}",
        "prefix": f"mqs_{key_id}_{secret}",
        "none": f"{prefix}_{key_id}_",
    }[change]
    assert code_of(api.request("GET", "/clients", bearer(wrong))) == (401, "unauthenticated")


def test_a_revoked_key_lets_nobody_in(api: Api) -> None:
    made = make_key(api)
    assert api.request("DELETE", f"/keys/{made['id']}").status_code == 204
    assert api.request("GET", "/clients", bearer(made["key"])).status_code == 401
    assert code_of(api.request("DELETE", f"/keys/{made['id']}")) == (404, "not_found")


def test_a_key_ends_at_its_time(api: Api) -> None:
    made = make_key(api, expires_at="2020-09-13T12:26:50Z")  # ten seconds after the clock's time
    assert api.request("GET", "/clients", bearer(made["key"])).status_code == 200
    api.clock.advance(10)
    assert api.request("GET", "/clients", bearer(made["key"])).status_code == 401


@pytest.mark.parametrize(
    "expires_at",
    ["2030-01-01T00:00:00", "soon", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"],
)
def test_a_time_that_is_none_is_refused(api: Api, expires_at: str) -> None:
    body = {"role": "viewer", "description": "x", "expires_at": expires_at}
    assert code_of(api.request("POST", "/keys", json=body)) == (422, "invalid_request")


def test_keys_of_another_process_count_here(api: Api) -> None:
    made = make_key(api)
    (record,) = [one for one in api.log.records if one.log_topic == ACCESS]
    api.access.forget()
    answer = api.request("GET", "/clients", bearer(made["key"]))
    assert code_of(answer) == (503, "unavailable")
    assert api.request("GET", "/clients").status_code == 200  # the token needs no log
    api.access.take([Followed(ACCESS, 0, record.key, record.value)], is_old=True)
    api.access.complete()
    assert api.request("GET", "/clients", bearer(made["key"])).status_code == 200


def test_a_record_that_cannot_be_read_takes_what_was_there(api: Api) -> None:
    made = make_key(api)
    bad = Followed(ACCESS, 1_000, access_key("key", made["id"]), b'{"v":1,"role":"god"}')
    assert len(api.access.take([bad], is_old=False)) == 1
    assert api.request("GET", "/clients", bearer(made["key"])).status_code == 401


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("viewer", {"viewer"}),
        ("editor", {"viewer", "editor"}),
        ("admin", {"viewer", "editor", "admin"}),
    ],
)
def test_each_role_may_what_its_operations_say(
    api: Api, document: dict[str, Any], role: str, allowed: set[str]
) -> None:
    key = make_key(api, role)["key"]
    seen = set()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            needed = operation.get("x-role")
            if needed is None or path.endswith("/logout") or "/live/" in path:
                continue
            path = path.removeprefix("/api/v1").replace("{", "").replace("}", "")
            answer = api.request(method.upper(), path, bearer(key))
            assert (answer.status_code == 403) == (needed not in allowed), (method, path)
            seen.add(needed)
    assert seen == {"viewer", "editor", "admin"}


def test_operations_that_change_who_may_come_in_are_for_administrators(
    document: dict[str, Any],
) -> None:
    paths = document["paths"]
    ours = ("/keys", "/keys/{id}", "/accounts", "/accounts/{name}", "/sessions", "/sessions/{id}")
    for path in ours:
        for operation in paths[f"/api/v1{path}"].values():
            assert operation["x-role"] == "admin"


def test_only_health_and_login_are_for_everybody(document: dict[str, Any]) -> None:
    paths = document["paths"]
    free = {
        path
        for path, methods in paths.items()
        if any("security" not in operation for operation in methods.values())
    }
    logins = {"/login", "/login/oidc", "/login/oidc/callback"}
    assert free == {f"/api/v1{path}" for path in ("/live", "/ready", *logins)}


@pytest.mark.parametrize(
    "key",
    [
        {"role": "viewer"},
        {"role": "editor"},
        {"role": "admin"},
        {"role": "editor", "tenants": ["acme"]},
        {"role": "viewer", "topic_filters": ["lab/#"]},
        {"role": "editor", "tenants": ["acme"], "topic_filters": ["lab/#"]},
    ],
)
def test_who_asks_is_told_for_what_he_may_ask(api: Api, key: dict[str, Any]) -> None:
    headers = bearer(make_key(api, **key)["key"])
    told = set(api.request("GET", "/session/operations", headers).json()["operations"])
    asked = {"tenant": "acme", "topic_filter": "lab/#"}
    seen = {True: 0, False: 0}
    for method, path, operation in operations(api):
        name = f"{method} {path}"
        is_told = name in told
        if "security" not in operation or (is_told and method != "GET") or "live" in path:
            continue  # it would be done
        named = re.sub(r"\{\w+\}", "lab", path)
        answer = api.request(method, named, headers, params=asked)
        assert (answer.status_code == 403) != is_told, name
        seen[is_told] += 1
    assert seen[True] > 5
    assert seen[False] > 5 or key == {"role": "admin"}


def test_login_opens_a_session(api: Api) -> None:
    make_account(api)
    answer = log_in(api)
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Path=/" in cookie
    headers, said = session_of(api)
    assert (said["name"], said["role"], said["kind"]) == ("ann", "editor", "account")
    assert api.request("GET", "/session", headers).json() == said


@pytest.mark.parametrize(("kind", "name"), [("token", "api-token"), ("key", "key:")])
def test_a_token_opens_a_session_too(api: Api, kind: str, name: str) -> None:
    token = TOKEN if kind == "token" else make_key(api, "editor")["key"]
    headers, said = session_of(api, token=token)
    assert said["kind"] == kind
    assert said["name"].startswith(name)
    assert api.request("GET", "/clients", headers).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"username": "ann", "password": "wrong"},
        {"username": "bob", "password": PASSWORD},
        {"username": "ann", "password": "\u0000"},
        {"token": "wrong"},
        {"token": "mqk_000000000000_x"},
    ],
)
def test_what_is_wrong_opens_none(api: Api, body: dict[str, str]) -> None:
    make_account(api)
    answer = log_in(api, **body)
    assert code_of(answer) == (401, "wrong_credentials")
    assert COOKIE not in answer.cookies


@pytest.mark.parametrize(
    "body",
    [{"username": "ann"}, {"token": "t", "username": "ann"}, {"password": "p", "token": "t"}],
)
def test_a_login_is_by_password_or_by_token(api: Api, body: dict[str, str]) -> None:
    assert code_of(log_in(api, **body)) == (422, "invalid_request")


def test_a_session_changes_nothing_without_its_csrf_token(api: Api) -> None:
    make_account(api)
    headers, _ = session_of(api)
    for wrong in ({}, {CSRF_HEADER: ""}, {CSRF_HEADER: "x"}):
        answer = api.request("POST", "/logout", {"Cookie": headers["Cookie"], **wrong})
        assert code_of(answer) == (403, "csrf")
    assert api.request("GET", "/clients", {"Cookie": headers["Cookie"]}).status_code == 200


def test_logout_ends_the_session(api: Api) -> None:
    make_account(api)
    headers, _ = session_of(api)
    answer = api.request("POST", "/logout", headers)
    assert answer.status_code == 204
    assert 'mqlake_session=""' in answer.headers["set-cookie"]
    assert api.request("GET", "/clients", headers).status_code == 401


def test_a_session_ends_by_itself_and_leaves_the_log_at_the_next_login(api: Api) -> None:
    make_account(api)
    headers, _ = session_of(api)
    (session_id,) = [name for name, _ in api.access.sessions()]
    api.clock.advance(12 * 3600)
    assert api.request("GET", "/clients", headers).status_code == 401
    session_of(api)
    ended = [one.key for one in api.log.records if one.value is None]
    assert ended == [access_key("session", session_id)]


def test_sessions_follow_their_account(api: Api) -> None:
    make_account(api, role="viewer")
    headers, _ = session_of(api)
    assert api.request("PUT", "/accounts/ann", json={"role": "admin"}).status_code == 200
    assert api.request("GET", "/keys", headers).status_code == 200
    assert api.request("DELETE", "/accounts/ann").status_code == 204
    assert api.request("GET", "/clients", headers).status_code == 401


def test_another_password_ends_the_sessions(api: Api) -> None:
    make_account(api)
    headers, _ = session_of(api)
    body = {"old_password": PASSWORD, "new_password": "battery staple"}
    assert api.request("POST", "/session/password", headers, json=body).status_code == 204
    assert api.request("GET", "/clients", headers).status_code == 401
    assert log_in(api).status_code == 401
    again, _ = session_of(api, username="ann", password="battery staple")
    assert api.request("GET", "/clients", again).status_code == 200
    wrong = api.request("POST", "/session/password", again, json=body)
    assert code_of(wrong) == (401, "wrong_credentials")


def test_a_password_that_saslprep_forbids_is_refused(api: Api) -> None:
    body = {"name": "ann", "role": "viewer", "password": "12345678\u0007"}
    assert code_of(api.request("POST", "/accounts", json=body)) == (422, "invalid_request")


def test_revoking_a_key_ends_the_sessions_it_opened(api: Api) -> None:
    made = make_key(api)
    headers, _ = session_of(api, token=made["key"])
    api.request("DELETE", f"/keys/{made['id']}")
    assert api.request("GET", "/clients", headers).status_code == 401


def test_accounts_are_listed_made_once_and_never_show_a_password(api: Api) -> None:
    make_account(api, "bob", "viewer")
    make_account(api)
    page = api.get("/accounts", limit=1)
    assert [one["name"] for one in page["items"]] == ["ann"]
    (bob,) = api.get("/accounts", cursor=page["next_cursor"])["items"]
    assert bob == api.get("/accounts/bob")
    times = {"created_at", "created_by", "password_changed_at"}
    assert set(bob) == {"name", "role", "topic_filters", "tenants", *times}
    body = {"name": "ann", "role": "viewer", "password": PASSWORD}
    assert code_of(api.request("POST", "/accounts", json=body)) == (409, "conflict")
    body["name"] = "api-token"
    assert code_of(api.request("POST", "/accounts", json=body)) == (409, "conflict")


def test_after_many_wrong_passwords_one_has_to_wait(api: Api) -> None:
    make_account(api)
    for _ in range(int(LOGINS_BURST)):
        assert log_in(api, username="ann", password="wrong").status_code == 401
    answer = log_in(api)
    assert code_of(answer) == (429, "rate_limited")
    api.clock.advance(int(answer.headers["retry-after"]))
    assert log_in(api).status_code == 200


def test_logins_that_come_at_once_count_before_their_passwords_are_checked(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    authenticator: ApiAuthenticator = api.services.access.authenticator
    asking = HTTPConnection({"type": "http", "client": ("192.0.2.1", 1), "headers": []})
    in_flight = [counting_login(authenticator, asking, "ann") for _ in range(int(LOGINS_BURST))]
    for one in in_flight:
        one.__enter__()
    with (
        pytest.raises(Problem, match="too many requests"),
        counting_login(authenticator, asking, "ann"),
    ):
        pass
    wrong = WrongCredentials("wrong")
    for one in in_flight[1:]:
        assert not one.__exit__(WrongCredentials, wrong, None)
    assert caplog.messages.count("login failed") == LOGINS_BURST - 1
    with pytest.raises(Problem), counting_login(authenticator, asking, "ann"):
        pass
    in_flight[0].__exit__(None, None, None)  # that one was right
    for _ in range(3):  # and others that are right take nothing
        with counting_login(authenticator, asking, "ann"):
            pass


def test_logins_under_many_names_are_counted_by_address(api: Api) -> None:
    authenticator: ApiAuthenticator = api.services.access.authenticator
    asking = HTTPConnection({"type": "http", "client": ("192.0.2.1", 1), "headers": []})
    wrong = WrongCredentials("wrong")
    for number in range(50):
        with suppress(WrongCredentials), counting_login(authenticator, asking, f"name-{number}"):
            raise wrong
    counting = counting_login(authenticator, asking, "x")
    with pytest.raises(Problem, match="too many requests"), counting:
        pass
    other = HTTPConnection({"type": "http", "client": ("192.0.2.2", 1), "headers": []})
    with counting_login(authenticator, other, "x"):
        pass


def test_addresses_of_one_customer_count_as_one(api: Api) -> None:
    authenticator: ApiAuthenticator = api.services.access.authenticator

    def asking(address: str) -> HTTPConnection:
        scope = {"type": "http", "scheme": "http", "headers": [], "app": api.client.app}
        return HTTPConnection({**scope, "client": (address, 1)})

    wrong = WrongCredentials("wrong")
    for number in range(50):
        counting = counting_login(authenticator, asking(f"2001:db8::{number:x}"), f"name-{number}")
        with suppress(WrongCredentials), counting:
            raise wrong
    counting = counting_login(authenticator, asking("2001:db8::ffff:1"), "x")
    with pytest.raises(Problem, match="too many requests"), counting:
        pass
    with counting_login(authenticator, asking("2001:db8:0:1::1"), "x"):
        pass
    for number in range(int(FAILURES_BURST)):
        with pytest.raises(Problem) as caught:
            identify(asking(f"2001:db8::{number:x}"), "wrong")
        assert caught.value.status == 401
    with pytest.raises(Problem) as caught:
        identify(asking("2001:db8::ffff:1"), "wrong")
    assert caught.value.status == 429


@pytest.mark.anyio
async def test_few_passwords_wait_to_be_checked() -> None:
    checks = ApiPasswordChecks()
    may_end = threading.Event()
    most = CHECKS_AT_ONCE + MAX_WAITING
    waiting = [asyncio.create_task(checks.run(may_end.wait)) for _ in range(most)]
    await asyncio.sleep(0)  # each has come to its check
    with pytest.raises(OperationalError, match="too many passwords"):
        await checks.run(lambda: True)
    may_end.set()
    assert await asyncio.gather(*waiting) == [True] * most
    assert not await checks.run(lambda: False)
    checks.close()


def test_wrong_tokens_of_one_address_are_slowed_down(api: Api) -> None:
    for _ in range(int(FAILURES_BURST)):
        assert api.request("GET", "/clients", bearer("wrong")).status_code == 401
    assert code_of(api.request("GET", "/clients", bearer("wrong"))) == (429, "rate_limited")
    assert api.request("GET", "/clients").status_code == 200


def test_whoever_asks_too_often_has_to_wait(api: Api) -> None:
    key = make_key(api)["key"]
    authenticator = api.services.access.authenticator
    name = api.request("GET", "/session", bearer(key)).json()["name"]
    authenticator.requests.take(name, REQUESTS - 2)
    assert api.request("GET", "/session", bearer(key)).status_code == 200
    answer = api.request("GET", "/session", bearer(key))
    assert code_of(answer) == (429, "rate_limited")
    assert answer.headers["retry-after"] == "1"
    assert api.request("GET", "/session").status_code == 200  # others need not
    api.clock.advance(1)
    assert api.request("GET", "/session", bearer(key)).status_code == 200


def test_one_caller_has_few_sessions_and_locks_nobody_out(api: Api) -> None:
    key = make_key(api)["key"]
    make_account(api)
    ann, _ = session_of(api)
    opened = []
    for _ in range(MAX_SESSIONS_OF_ONE + 3):
        opened.append(session_of(api, token=key)[0])
        api.clock.advance(0.001)
    answers = [api.request("GET", "/session", headers).status_code for headers in opened]
    assert answers == [401] * 3 + [200] * MAX_SESSIONS_OF_ONE
    assert api.request("GET", "/session", ann).status_code == 200


def test_a_session_of_the_token_ends_with_the_token(api: Api) -> None:
    headers, _ = session_of(api, token=TOKEN)
    key_headers, _ = session_of(api, token=make_key(api)["key"])
    assert api.request("GET", "/keys", headers).status_code == 200
    authenticator: ApiAuthenticator = api.services.access.authenticator
    # The API begins anew with another token in its file.
    callers = Callers("another", api.access, api.clock)
    api.put_in("access", authenticator=replace(authenticator, callers=callers))
    assert api.request("GET", "/keys", headers).status_code == 401
    assert api.request("GET", "/session", key_headers).status_code == 200
    for record in api.log.records:
        assert TOKEN.encode() not in (record.value or b"")


def test_answers_have_the_identifier_of_their_request(api: Api) -> None:
    given = api.request("GET", "/live", {"X-Request-ID": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    made = {
        api.request("GET", "/live", {"X-Request-ID": bad}).headers["x-request-id"]
        for bad in ("", "x" * 65, "a b")
    }
    assert len(made) == 3
    assert all(len(one) == 16 for one in made)


def test_answers_have_the_headers_that_keep_browsers_careful(api: Api) -> None:
    elsewhere = {"Origin": "https://evil.example"}
    for answer in (api.request("GET", "/live", elsewhere), api.request("GET", "/nothing")):
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")


def test_a_mistake_of_ours_is_a_problem_too(api: Api) -> None:
    api.put_in("access", authenticator=None)
    answer = api.request("GET", "/session")
    assert code_of(answer) == (500, "internal_error")
    assert answer.headers["x-request-id"]


def test_a_large_body_is_refused(api: Api) -> None:
    body = json.dumps({"description": "x" * 5_000_000, "role": "viewer"})
    answer = api.request("POST", "/keys", content=body)
    assert code_of(answer) == (413, "body_too_large")


def test_sessions_are_listed_and_ended(api: Api) -> None:
    make_account(api)
    headers, _ = session_of(api)
    (listed,) = api.get("/sessions")["items"]
    assert (listed["name"], listed["role"], listed["current"]) == ("ann", "editor", False)
    assert api.request("GET", "/session", headers).status_code == 200
    path = f"/sessions/{listed['id']}"
    assert api.request("DELETE", path, headers).status_code == 403, "an editor"
    assert api.request("DELETE", path).status_code == 204
    assert api.request("GET", "/session", headers).status_code == 401
    assert api.get("/sessions")["items"] == []
    assert api.request("DELETE", path).status_code == 404


def test_sessions_that_no_longer_count_are_not_listed(api: Api) -> None:
    make_account(api)
    session_of(api)
    of_token, _ = session_of(api, token=TOKEN)
    listed = api.request("GET", "/sessions", of_token).json()["items"]
    assert {(one["name"], one["current"]) for one in listed} == {
        ("ann", False),
        ("api-token", True),
    }
    api.clock.advance(12 * 3600)
    assert api.get("/sessions")["items"] == []


def test_an_administrator_of_some_tenants_ends_sessions_of_these_alone(api: Api) -> None:
    make_account(api)
    session_of(api)
    acme = {"name": "bob", "role": "viewer", "password": PASSWORD, "tenants": ["acme"]}
    assert api.request("POST", "/accounts", json=acme).status_code == 201
    session_of(api, username="bob", password=PASSWORD)
    key = bearer(make_key(api, "admin", tenants=["acme"])["key"])
    (own,) = api.request("GET", "/sessions", key).json()["items"]
    assert own["name"] == "bob"
    (other,) = (one for one in api.get("/sessions")["items"] if one["name"] == "ann")
    assert api.request("DELETE", f"/sessions/{other['id']}", key).status_code == 404
    assert api.request("DELETE", f"/sessions/{own['id']}", key).status_code == 204
