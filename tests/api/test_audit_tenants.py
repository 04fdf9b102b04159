"""Whose administrators see a row of the audit log: those of the tenants that it is about."""

import json
from typing import Any

import pytest

from api.alarms.checks import Found
from api.audit.tenants import READERS
from api.sql.errors import QueryError
from tests.api.conftest import Api, operations
from tests.api.test_access import PASSWORD, bearer, make_key, session_of
from tests.api.test_alarms import Watched
from tests.api.test_jobs import await_end
from tests.api.test_tenant_rights import key_for

OF_NO_TENANT = {
    *("POST /bans", "DELETE /bans/{id}", "PUT /rights", "PUT /retention"),
    *("POST /balancer/nodes/{name}/drain", "DELETE /balancer/nodes/{name}/drain"),
    *("POST /gateways/{name}/drain", "DELETE /gateways/{name}/drain"),
    "POST /gateways/{name}/reload",
}
"""What they change is of all tenants."""


def tenants(api: Api) -> list[str]:
    """Return the tenants of the last row."""
    found: list[str] = json.loads(api.audited.records[-1].value or b"")["tenants"]
    return found


def test_each_change_is_of_a_tenant_or_of_all(api: Api) -> None:
    """A new operation is of all until `api/audit/tenants.py` says more; then it stands above."""
    known = set()
    for method, path, operation in operations(api):
        if not operation.get("x-audited"):
            continue
        names_one = any(one["name"] == "tenant" for one in operation.get("parameters", ()))
        is_of_tenants = names_one or path in READERS
        known.add(path)
        assert is_of_tenants != (f"{method} {path}" in OF_NO_TENANT), f"{method} {path}"
    assert set(READERS) - {"/login/oidc/callback"} <= known


def test_a_key_is_of_its_tenants(api: Api) -> None:
    acme, beta = key_for(api, "acme"), key_for(api, "beta")
    asked = {"role": "viewer", "description": "x"}
    for who, given, expected in (
        (None, {"tenants": ["beta", "acme"]}, ["acme", "beta"]),
        (None, {}, []),
        (None, {"tenants": None}, []),
        (acme, {}, ["acme"]),
        (acme, {"tenants": ["beta"]}, ["beta"]),  # refused: it would have been beta's
        (acme, {"role": "none"}, ["acme"]),
    ):
        api.request("POST", "/keys", who, json={**asked, **given})
        assert tenants(api) == expected, given
    of_beta = make_key(api, tenants=["beta"])["id"]
    for who, status in ((acme, 404), (beta, 204)):
        assert api.request("DELETE", f"/keys/{of_beta}", who).status_code == status
        assert tenants(api) == ["beta"], "its state is in the row"
    for key_id in (make_key(api)["id"], "nobody"):
        assert api.request("DELETE", f"/keys/{key_id}", acme).status_code == 404
        assert tenants(api) == []


def test_an_account_is_of_the_tenants_that_it_had_and_has(api: Api) -> None:
    body = {"name": "ann", "role": "viewer", "password": PASSWORD}
    api.request("POST", "/accounts", json={**body, "tenants": ["acme"]})
    assert tenants(api) == ["acme"]
    for change, expected in (
        ({"role": "editor"}, ["acme"]),
        ({"tenants": ["beta"]}, ["acme", "beta"]),
        ({"tenants": ["beta", "gamma"]}, ["beta", "gamma"]),
        ({"tenants": None}, []),
        ({"tenants": ["acme"]}, []),
    ):
        assert api.request("PUT", "/accounts/ann", json=change).status_code == 200
        assert tenants(api) == expected, change
    api.request("DELETE", "/accounts/ann")
    assert tenants(api) == ["acme"]
    api.request("DELETE", "/accounts/ann")
    assert tenants(api) == []


def test_logins_are_of_the_tenants_of_who_logs_in(api: Api) -> None:
    key = make_key(api, tenants=["acme"])["key"]
    body = {"name": "ann", "role": "viewer", "password": PASSWORD, "tenants": ["beta"]}
    api.request("POST", "/accounts", json=body)
    for asked, expected in (
        ({"token": key}, ["acme"]),
        ({"token": "nobody's"}, []),
        ({"username": "ann", "password": PASSWORD}, ["beta"]),
        ({"username": "ann", "password": "guessed it"}, ["beta"]),
        ({"username": "nobody", "password": "guessed it"}, []),
    ):
        api.request("POST", "/login", {}, json=asked)
        assert tenants(api) == expected, asked
    headers, _ = session_of(api)
    (session,) = [
        one for one in api.get("/sessions")["items"] if one["name"] == "ann" and not one["current"]
    ][:1]
    assert api.request("DELETE", f"/sessions/{session['id']}").status_code == 204
    assert tenants(api) == ["beta"]
    api.request("POST", "/logout", headers)
    assert tenants(api) == ["beta"]


@pytest.mark.parametrize("tenant", ["acme", None])
def test_an_alarm_is_of_its_tenant(api: Api, tenant: str | None) -> None:
    watched = Watched(api)
    watched.look(Found("alarm", "it burns", "", tenant=tenant))
    (alarm,) = watched.view.all()
    for method in ("POST", "DELETE"):
        path = f"/alarms/{alarm.id}/acknowledge"
        assert api.request(method, path, json={"note": "x"}).status_code == 200
        assert tenants(api) == ([] if tenant is None else [tenant])


def test_jobs_and_tenants_are_of_their_tenant(api: Api) -> None:
    job = api.services.runs.jobs.start("dry_run", "acme", "r", lambda _: {})
    await_end(job)
    assert api.request("DELETE", f"/jobs/{job.id}", key_for(api, "beta")).status_code == 404
    assert tenants(api) == ["acme"]
    assert api.request("DELETE", f"/jobs/{job.id}").status_code == 202
    assert tenants(api) == ["acme"]
    assert api.request("PUT", "/tenants/beta", json={}).status_code == 200
    assert tenants(api) == ["beta"]


def test_a_name_that_is_no_tenants_is_of_all(api: Api) -> None:
    for tenant in ("A", "a%22b", "", "a%0A", "x" * 300):
        api.request("DELETE", f"/rules/x?tenant={tenant}")
        assert tenants(api) == (["default"] if tenant == "" else []), tenant
    api.request("DELETE", "/rules/x?tenant=acme&tenant=beta")
    assert tenants(api) == ["beta"], "as the operation has it"


def test_the_whole_rights_are_no_tenants(api: Api) -> None:
    rule = {"effect": "allow", "actions": ["publish"], "topics": ["x"]}
    assert api.request("PUT", "/rights?tenant=acme", json={"rules": [rule]}).status_code == 200
    assert tenants(api) == []


def test_the_query_is_told_whose_rows_the_caller_sees(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    def checked(text: str, tenant: str, **more: Any) -> Any:
        told.append((tenant, more["is_administrator"], more["is_for_all"]))
        raise QueryError("enough")

    monkeypatch.setattr("api.routes.queries.sql.check", checked)
    for role, of in (("admin", ["acme"]), ("admin", None), ("viewer", None)):
        key = bearer(make_key(api, role, tenants=of)["key"])
        query = {"query": "SELECT * FROM audit_log"}
        assert api.request("POST", "/sql?tenant=acme", key, json=query).status_code == 422
    assert told == [("acme", True, False), ("acme", True, True), ("acme", False, True)]
