"""How many keys, accounts and sessions there may be, and which sessions end to make room."""

import pytest

from api.access.room import (
    MAX_OF_TENANT,
    MAX_SESSIONS,
    MAX_SESSIONS_OF_ONE,
    HeldSession,
    Tenants,
    need_room,
    sessions_to_end,
)
from api.log.repository import InTheWay
from mqlake.records.access import Account, ApiKey, LoginSession, access_key, encode_access
from tests.api.conftest import Api, take
from tests.api.test_access import PASSWORD, bearer, log_in, make_account, make_key, session_of
from tests.api.test_api import TOKEN

ACME = ("acme",)


def held(
    number: int, user: str, tenants: Tenants = ACME, *, at: int | None = None, is_root: bool = False
) -> HeldSession:
    begun = number if at is None else at
    return HeldSession(f"{user}-{number}", begun, ("account", user), tenants, is_root)


def many(count: int, tenants: Tenants, name: str, each: int = 1, at: int = 0) -> list[HeldSession]:
    """Return sessions of as many users as are needed, the first user's first."""
    return [held(n, f"{name}{n // each}", tenants, at=at + n) for n in range(count)]


def test_there_is_room_at_first() -> None:
    need_room("keys", ACME, [ACME] * (MAX_OF_TENANT - 1), 10_000)
    need_room("keys", None, [ACME] * MAX_OF_TENANT, 10_000)
    assert sessions_to_end(held(1, "ann"), []) == []


def test_a_tenant_has_room_of_its_own() -> None:
    full = [ACME] * MAX_OF_TENANT
    with pytest.raises(InTheWay, match="there are 1000 keys for tenant 'acme'"):
        need_room("keys", ACME, full, 10_000)
    with pytest.raises(InTheWay, match="tenant 'acme'"):
        need_room("accounts", ("beta", "acme"), full, 10_000)
    need_room("keys", ("beta",), full, 10_000)
    need_room("keys", None, full, 10_000)
    with pytest.raises(InTheWay, match="there are 1000 keys, which"):
        need_room("keys", ("beta",), full, 1_000)


def test_who_is_for_several_tenants_takes_room_of_each() -> None:
    both = [("acme", "beta")] * MAX_OF_TENANT
    for tenants in (ACME, ("beta",)):
        with pytest.raises(InTheWay, match=tenants[0]):
            need_room("keys", tenants, both, 10_000)
    need_room("accounts", ("acme", "gamma"), both, 10_000, replaced=ACME)


def test_the_oldest_of_one_ends_first() -> None:
    own = [held(n, "ann") for n in range(MAX_SESSIONS_OF_ONE)]
    assert sessions_to_end(held(99, "ann"), [*own[::-1], held(0, "bob")]) == ["ann-0"]


def test_in_a_full_tenant_the_oldest_of_who_has_most_ends() -> None:
    there = [*many(MAX_OF_TENANT - 30, ACME, "u"), *many(30, ACME, "mallory", 15, at=5_000)]
    assert sessions_to_end(held(9_000, "ann"), there) == ["mallory0-0"]
    assert sessions_to_end(held(9_000, "ann", ("beta",)), there) == []


def test_for_a_tenant_alone_no_session_of_more_tenants_ends() -> None:
    both = many(MAX_OF_TENANT, ("acme", "beta"), "u", 20)
    with pytest.raises(InTheWay, match="1000 sessions for tenant 'acme'"):
        sessions_to_end(held(9_000, "ann"), both)
    assert sessions_to_end(held(9_000, "ann", ("acme", "beta")), both) == ["u0-0"]


def test_of_all_the_oldest_for_the_tenant_that_has_most_ends() -> None:
    honest = many(300, ("honest",), "h")
    # Somebody with many tenants mixes them as he likes.
    mixed = [
        held(n, f"m{n}", (f"t{n % 11}", f"t{(n + 1) % 11}"), at=1_000 + n) for n in range(5_000)
    ]
    roots = [held(n, f"root{n}", None, is_root=True) for n in range(50)]
    viewers = many(800, None, "v")
    others = many(MAX_SESSIONS - 6_150, ("many",), "o", at=100_000)
    new = held(9_999_999, "ann", ("honest",))
    assert sessions_to_end(new, [*honest, *mixed, *roots, *viewers, *others]) == ["o0-0"]
    others = [held(n, f"o{n}", (f"o{n % 50}",), at=100_000 + n) for n in range(len(others))]
    assert sessions_to_end(new, [*honest, *mixed, *roots, *viewers, *others]) == ["m0-0"]


def test_an_administrator_of_all_tenants_gets_in_always() -> None:
    root = held(9_999_999, "root", None, is_root=True)
    assert sessions_to_end(root, many(MAX_SESSIONS, ACME, "u", 20)) == ["u0-0"]
    roots = [held(n, f"r{n}", None, is_root=True) for n in range(MAX_SESSIONS)]
    assert sessions_to_end(root, roots) == ["r0-0"]
    for other in (held(9_999_999, "ann"), held(9_999_999, "viewer", None)):
        with pytest.raises(InTheWay, match="10000 sessions"):
            sessions_to_end(other, roots)


def test_a_full_list_ends_one_session_for_each_new_one() -> None:
    there = many(MAX_SESSIONS, ACME, "u")
    for _ in range(3):
        ended = sessions_to_end(held(9_999_999, "ann", ("beta",)), there)
        assert len(ended) == 1
        there = [one for one in there if one.id not in ended] + [held(1, f"b{len(there)}", ("b",))]


def put_sessions(api: Api, count: int, tenants: Tenants, name: str, each: int = 20) -> None:
    """Have users of some tenants log in."""
    now = api.clock.now_ms()
    for at in range(count):
        user = f"{name}-{at // each}"
        if at % each == 0:
            account = Account("viewer", "", now, "root", now, None, tenants)
            take(api.access, access_key("account", user), encode_access(account))
        session = LoginSession("account", user, "0" * 64, now + at, now + 10_000_000)
        key = access_key("session", f"{name}{at}")
        take(api.access, key, encode_access(session))


def ended(api: Api) -> list[str]:
    """Return the sessions that the API has ended, in order."""
    gone = (one.key.decode() for one in api.log.records if one.value is None)
    return [key.removeprefix("s/") for key in gone]


def test_nobody_is_locked_out_by_a_tenant(api: Api) -> None:
    for number in range(10):
        put_sessions(api, MAX_SESSIONS // 10, (f"t{number}",), f"u{number}")
    make_account(api)  # for all tenants, and no administrator
    assert log_in(api).status_code == 200
    assert log_in(api, token=TOKEN).status_code == 200
    made = make_key(api, tenants=["beta"])
    assert log_in(api, token=made["key"]).status_code == 200
    assert len(ended(api)) >= 3, "one for each of them, at least"


def test_a_tenant_ends_sessions_of_its_own(api: Api) -> None:
    put_sessions(api, MAX_OF_TENANT, ACME, "u")
    beta, _ = session_of(api, token=make_key(api, tenants=["beta"])["key"])
    acme, _ = session_of(api, token=make_key(api, tenants=["acme"])["key"])
    assert ended(api) == ["u0"]
    for headers in (beta, acme):
        assert api.request("GET", "/session", headers).status_code == 200


def test_sessions_that_count_no_more_take_no_room(api: Api) -> None:
    put_sessions(api, 3, ACME, "gone", 1)
    for number in range(3):
        take(api.access, access_key("account", f"gone-{number}"), None)
    session_of(api, token=TOKEN)
    assert ended(api) == ["gone0", "gone1", "gone2"]


def test_keys_and_accounts_of_a_tenant_are_bounded(api: Api) -> None:
    now = api.clock.now_ms()
    account = Account("viewer", "", now, "root", now, None, ACME)
    for number in range(MAX_OF_TENANT):
        take(api.access, access_key("account", f"u{number}"), encode_access(account))
    body = {"name": "ann", "role": "viewer", "password": PASSWORD}
    answer = api.request("POST", "/accounts", json={**body, "tenants": ["acme"]})
    assert answer.status_code == 409
    assert "1000 accounts for tenant 'acme'" in answer.json()["detail"]
    assert api.request("POST", "/accounts", json={**body, "tenants": ["beta"]}).status_code == 201
    wider = api.request("PUT", "/accounts/ann", json={"tenants": ["acme", "beta"]})
    assert wider.status_code == 409
    same = api.request("PUT", "/accounts/u0", json={"tenants": ["acme"], "role": "editor"})
    assert same.status_code == 200
    admin = bearer(make_key(api, "admin", tenants=["acme"])["key"])
    key = ApiKey("viewer", "", "0" * 64, now, "root", None, None, ("acme", "gamma"))
    for number in range(MAX_OF_TENANT - 2):
        take(api.access, access_key("key", f"k{number}"), encode_access(key))
    asked = {"role": "viewer", "description": "x"}
    assert api.request("POST", "/keys", admin, json=asked).status_code == 201
    answer = api.request("POST", "/keys", admin, json=asked)
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    make_key(api, tenants=["beta"])
    make_key(api)
