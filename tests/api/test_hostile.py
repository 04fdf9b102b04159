"""Who may not, at each operation of the OpenAPI document: refused with the right answer.

The cases are made of the document: a new operation is among them, and fails until it says who may.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from api.entrance.authentication import COOKIE, CSRF_HEADER
from mqlake.records.access import ROLES
from tests.api.conftest import Api, memory_api
from tests.api.test_access import bearer, make_account, make_key, session_of
from tests.mqlake.log_lines import lines_with

Headers = dict[str, str]


class Operation(NamedTuple):
    method: str
    path: str
    role: str
    is_for_topics: bool
    is_for_tenants: bool
    names_tenant: bool


class Case(NamedTuple):
    """A request that is to be refused."""

    headers: Headers
    operation: Operation
    status: int
    code: str


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with memory_api(tmp_path_factory.mktemp("hostile")) as made:
        make_account(made)
        yield made


@pytest.fixture(scope="module")
def operations(api: Api) -> list[Operation]:
    return [
        Operation(
            method.upper(),
            path.removeprefix("/api/v1").replace("{", "").replace("}", ""),
            said["x-role"],
            said.get("x-topics", False),
            said["x-tenants"],
            any(one["name"] == "tenant" for one in said.get("parameters", ())),
        )
        for path, methods in api.client.app.openapi()["paths"].items()
        for method, said in methods.items()
        if "security" in said
    ]


def revoked(api: Api) -> Headers:
    made = make_key(api, "admin")
    api.request("DELETE", f"/keys/{made['id']}")
    return bearer(made["key"])


def expired(api: Api) -> Headers:
    return bearer(make_key(api, "admin", expires_at="1970-01-02T00:00:00Z")["key"])


def of_nobody(api: Api) -> dict[str, Headers]:
    """Return what lets nobody in."""
    known = make_key(api, "admin")
    _, key_id, secret = known["key"].split("_", 2)
    session, _ = session_of(api)
    cookie = session["Cookie"].partition("=")[2]
    closed, _ = session_of(api)
    assert api.request("POST", "/logout", closed).status_code == 204
    return {
        "nothing": {},
        "an empty token": {"Authorization": "Bearer "},
        "another scheme": {"Authorization": f"Basic {known['key']}"},
        "a wrong token": bearer("wrong"),
        "half a token": bearer(known["key"][:-1]),
        "more than a token": bearer(known["key"] + "x"),
        "the secret of one key with the name of another": bearer(
            f"mqk_{make_key(api)['id']}_{secret}"
        ),
        "a name without a secret": bearer(f"mqk_{key_id}_"),
        "a revoked key": revoked(api),
        "a key that has expired": expired(api),
        "a session as a token": bearer(cookie),
        "a key as a session": {"Cookie": f"{COOKIE}={known['key']}"},
        "a session that is over": closed,
        "half a session": {**session, "Cookie": f"{COOKIE}={cookie[:-1]}"},
        "a name that somebody claims": {"X-Forwarded-User": "ann", "X-Remote-User": "ann"},
    }


def nobody(api: Api, operations: list[Operation]) -> Iterator[Case]:
    for number, headers in enumerate(of_nobody(api).values()):
        # All operations ask the same authenticator: without anything each, else each fourth.
        for operation in operations if number == 0 else operations[number % 4 :: 4]:
            yield Case(headers, operation, 401, "unauthenticated")


def lower_roles(api: Api, operations: list[Operation]) -> Iterator[Case]:
    for role in ("viewer", "editor"):
        key = bearer(make_key(api, role)["key"])
        tricks: tuple[Headers, ...] = (
            {},
            {"X-HTTP-Method-Override": "GET", "X-Original-URL": "/api/v1/session"},
        )
        for trick in tricks:
            for operation in operations:
                if ROLES.index(operation.role) > ROLES.index(role):
                    yield Case({**key, **trick}, operation, 403, "forbidden")


def of_topics(api: Api, operations: list[Operation]) -> Iterator[Case]:
    for role in ("viewer", "editor"):
        for filters in ([], ["#"], ["lab/#"]):
            key = bearer(make_key(api, role, topic_filters=filters)["key"])
            for operation in operations:
                if not operation.is_for_topics:
                    yield Case(key, operation, 403, "forbidden")


def of_tenants(api: Api, operations: list[Operation]) -> Iterator[Case]:
    ways = (
        *("?tenant=beta", "", "?tenant=default", "?tenant=acme&tenant=beta"),
        *("?tenant=beta&tenant=acme", "?tenant=ACME", "?tenant=acme%00", "?tenant=%61cme%20"),
    )
    for role in ROLES:
        key = bearer(make_key(api, role, tenants=["acme"])["key"])
        for number, operation in enumerate(operations):
            if not operation.is_for_tenants:
                yield Case(key, operation, 403, "forbidden")
            elif operation.names_tenant:
                # All operations ask the same authenticator: each in the first way, and in another.
                way = ways[0] if role == "admin" else ways[number % len(ways)]
                asked = operation._replace(path=operation.path + way)
                yield Case(key, asked, 403, "forbidden")


def other_pages(api: Api, operations: list[Operation]) -> Iterator[Case]:
    """A page of somebody else's sends the cookie, at worst, and knows no token of the session."""
    mine, said = session_of(api, token=make_key(api, "admin")["key"])
    _, others = session_of(api)
    cookie = {"Cookie": mine["Cookie"], "Origin": "https://evil.example"}
    for token in ("", "x", others["csrf_token"], said["csrf_token"][:-1]):
        for operation in operations:
            if operation.method != "GET":
                yield Case({**cookie, CSRF_HEADER: token}, operation, 403, "csrf")


Category = Callable[[Api, list[Operation]], Iterator[Case]]
CATEGORIES: dict[Category, int] = {
    nobody: 400,
    lower_roles: 100,
    of_topics: 300,
    of_tenants: 200,
    other_pages: 150,
}
"""With how many cases each has at least."""


def secrets_in(headers: Headers) -> Iterator[str]:
    """Yield what somebody shows, and who sees it could show, too."""
    for name in ("Authorization", "Cookie", CSRF_HEADER):
        value = headers.get(name, "").split(" ")[-1].removeprefix(f"{COOKIE}=")
        if len(value) > 5:
            yield value


@pytest.mark.parametrize("category", CATEGORIES, ids=lambda one: one.__name__)
def test_who_may_not_is_refused(api: Api, operations: list[Operation], category: Category) -> None:
    healthy = bearer(make_key(api, "viewer")["key"])
    count = 0
    before = Counter(one.log_topic for one in api.log.records)
    cases = list(category(api, operations))
    made = Counter(one.log_topic for one in api.log.records) - before
    shown = {secret for headers, *_ in cases for secret in secrets_in(headers)}
    assert shown
    with lines_with(lambda line: any(secret in line for secret in shown)) as lines:
        for headers, (method, path, *_), status, code in cases:
            body: dict[str, Any] = {} if method == "GET" else {"json": {}}
            api.clock.advance(1.0)  # wrong tokens are counted
            answer = api.request(method, path, headers, **body)
            said = answer.json()
            assert (answer.status_code, said["code"]) == (status, code), (headers, method, path)
            count += 1
    assert lines.count, "else nothing was looked at"
    assert not lines.found, "no line tells what somebody has shown"
    assert count >= CATEGORIES[category]
    after = Counter(one.log_topic for one in api.log.records) - before
    assert after - made == Counter(), "nothing was changed"
    assert api.request("GET", "/session", healthy).status_code == 200


@pytest.mark.parametrize("form", ["{}/", "/{}", "{}?token=x", "/./{}", "/%2e{}", "{}%00", "{};a"])
def test_odd_forms_of_a_path_lead_nowhere(api: Api, operations: list[Operation], form: str) -> None:
    for method, path, *_ in operations:
        api.clock.advance(1.0)
        answer = api.request(method, form.format(path), {})
        assert answer.status_code in (307, 401, 404, 405), (method, path)
        location = answer.headers.get("location", "")
        assert not location or location.startswith("http://mqlake/api/v1/")
